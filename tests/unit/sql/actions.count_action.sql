UPDATE outboxkit_audit
SET affected=(outboxkit_audit.affected + :counted)
WHERE outboxkit_audit.id = :of;
