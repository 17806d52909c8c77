INSERT INTO outboxkit_attempt (queue, message_id, starts)
VALUES (:queue, :message_id, 1)
ON CONFLICT (queue, message_id) DO UPDATE
SET starts = (outboxkit_attempt.starts + 1), touched_at = CURRENT_TIMESTAMP
RETURNING outboxkit_attempt.starts, outboxkit_attempt.failures, outboxkit_attempt.first_failed_at;
