SELECT outboxkit_attempt.starts, outboxkit_attempt.failures, outboxkit_attempt.first_failed_at
FROM outboxkit_attempt
WHERE outboxkit_attempt.queue = :queue AND outboxkit_attempt.message_id = :message_id;
