DELETE FROM outboxkit_outbox
WHERE outboxkit_outbox.position IN (:positions, …);
