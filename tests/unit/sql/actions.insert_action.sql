INSERT INTO outboxkit_audit (action, operator, filter, started_at, ended_at, affected, result, form)
VALUES (:action, :operator, :filter, statement_timestamp(), CASE WHEN (:outcome IS NOT NULL) THEN statement_timestamp()
    ELSE NULL END, :counted, :outcome, :form)
RETURNING outboxkit_audit.id;
