SELECT outboxkit_audit.id, outboxkit_audit.action, outboxkit_audit.operator, outboxkit_audit.filter,
    outboxkit_audit.started_at, outboxkit_audit.ended_at, outboxkit_audit.affected, outboxkit_audit.result,
    outboxkit_audit.form
FROM outboxkit_audit
WHERE outboxkit_audit.started_at >= :since AND outboxkit_audit.started_at <= :before_at AND (outboxkit_audit.started_at,
    outboxkit_audit.id) < (:before_at, :before_id)
ORDER BY outboxkit_audit.started_at DESC, outboxkit_audit.id DESC
LIMIT :limit;
