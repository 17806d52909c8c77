INSERT INTO outboxkit_attempt (queue, message_id, starts, failures, first_failed_at)
VALUES (:queue, :message_id, 0, 1, CURRENT_TIMESTAMP)
ON CONFLICT (queue, message_id) DO UPDATE
SET starts = 0, failures = (outboxkit_attempt.failures + 1), first_failed_at =
    coalesce(outboxkit_attempt.first_failed_at, CURRENT_TIMESTAMP), touched_at = CURRENT_TIMESTAMP
RETURNING failures, first_failed_at;
