DELETE FROM outboxkit_operation
WHERE :of = outboxkit_operation.action AND outboxkit_operation.worker = :by_worker
RETURNING outboxkit_operation.action;
