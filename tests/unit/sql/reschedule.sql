UPDATE outboxkit_outbox
SET due_at=:due, attempts=(outboxkit_outbox.attempts + :attempts_1), last_error=:error
WHERE outboxkit_outbox.position = :at_position;
