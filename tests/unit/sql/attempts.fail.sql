INSERT INTO outboxkit_attempt (queue, message_id, starts, failures, first_failed_at)
VALUES (:queue, :message_id, 0, :failed, CURRENT_TIMESTAMP)
ON CONFLICT (queue, message_id) DO UPDATE
SET starts = 0, failures = CASE WHEN (outboxkit_attempt.failures > :failed) THEN outboxkit_attempt.failures ELSE :failed
    END, first_failed_at = coalesce(outboxkit_attempt.first_failed_at, CURRENT_TIMESTAMP), touched_at =
    CURRENT_TIMESTAMP
RETURNING outboxkit_attempt.failures, outboxkit_attempt.first_failed_at;
