SELECT outboxkit_audit.id
FROM outboxkit_audit
WHERE outboxkit_audit.form = :form;
