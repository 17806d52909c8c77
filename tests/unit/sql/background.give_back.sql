UPDATE outboxkit_operation
SET leased_until=NULL
WHERE :of = outboxkit_operation.action AND outboxkit_operation.worker = :by_worker;
