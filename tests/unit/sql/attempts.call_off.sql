UPDATE outboxkit_attempt
SET starts=(outboxkit_attempt.starts - 1), touched_at=CURRENT_TIMESTAMP
WHERE outboxkit_attempt.queue = :at_queue AND outboxkit_attempt.message_id = :at_message_id;
