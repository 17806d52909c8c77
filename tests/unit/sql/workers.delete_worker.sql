DELETE FROM outboxkit_worker
WHERE outboxkit_worker.id = :of;
