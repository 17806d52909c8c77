UPDATE outboxkit_audit
SET ended_at=strftime('%Y-%m-%d %H:%M:%f000', 'now'), affected=(outboxkit_audit.affected +
    :counted), result=:outcome
WHERE outboxkit_audit.id = :of;
