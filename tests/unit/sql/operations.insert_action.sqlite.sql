INSERT INTO outboxkit_audit (action, operator, filter, started_at, ended_at, affected, result)
VALUES (:action, :operator, :filter, strftime('%Y-%m-%d %H:%M:%f000', 'now'), CASE WHEN (:outcome IS
    NOT NULL) THEN strftime('%Y-%m-%d %H:%M:%f000', 'now') ELSE NULL END, :counted, :outcome)
RETURNING id;
