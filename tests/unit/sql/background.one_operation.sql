SELECT outboxkit_operation.action, outboxkit_operation.total, outboxkit_operation.stops,
    outboxkit_operation.leased_until, outboxkit_audit.action AS name, outboxkit_audit.operator, outboxkit_audit.filter,
    outboxkit_audit.started_at, outboxkit_audit.affected
FROM outboxkit_operation JOIN outboxkit_audit ON outboxkit_audit.id = outboxkit_operation.action
WHERE :of = outboxkit_operation.action;
