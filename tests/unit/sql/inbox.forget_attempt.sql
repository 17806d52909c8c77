DELETE FROM outboxkit_attempt
WHERE outboxkit_attempt.queue = :queue AND outboxkit_attempt.message_id = :message_id;
