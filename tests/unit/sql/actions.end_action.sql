UPDATE outboxkit_audit
SET ended_at=statement_timestamp(), affected=(outboxkit_audit.affected + :counted), result=:outcome
WHERE outboxkit_audit.id = :of;
