SELECT outboxkit_outbox.position, outboxkit_outbox.payload
FROM outboxkit_outbox
WHERE outboxkit_outbox.position IN (:positions, …);
