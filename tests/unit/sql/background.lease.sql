UPDATE outboxkit_operation
SET worker=:by_worker, leased_until=(statement_timestamp() + :lasts)
WHERE (SELECT outboxkit_operation.action
    FROM outboxkit_operation
    WHERE outboxkit_operation.leased_until IS NULL OR outboxkit_operation.leased_until < statement_timestamp()
    ORDER BY outboxkit_operation.action
    LIMIT :param_1
    FOR UPDATE SKIP LOCKED) = outboxkit_operation.action
RETURNING outboxkit_operation.action, outboxkit_operation.plan, outboxkit_operation.total, outboxkit_operation.place,
    outboxkit_operation.stops, outboxkit_operation.worker, outboxkit_operation.leased_until;
