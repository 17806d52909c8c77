UPDATE outboxkit_outbox
SET due_at=:due, held=:held
WHERE outboxkit_outbox.position IN (:positions, …);
