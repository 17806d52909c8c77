UPDATE outboxkit_outbox
SET due_at=:due, attempts=(outboxkit_outbox.attempts + :failures), last_error=:error, held=:held,
    first_failed_at=coalesce(outboxkit_outbox.first_failed_at, :now)
WHERE outboxkit_outbox.position = :at_position;
