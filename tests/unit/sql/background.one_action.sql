SELECT outboxkit_audit.id, outboxkit_audit.action, outboxkit_audit.operator, outboxkit_audit.filter,
    outboxkit_audit.started_at, outboxkit_audit.ended_at, outboxkit_audit.affected, outboxkit_audit.result,
    outboxkit_audit.form
FROM outboxkit_audit
WHERE outboxkit_audit.id = :of;
