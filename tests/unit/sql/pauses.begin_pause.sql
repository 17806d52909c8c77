INSERT INTO outboxkit_pause (process, name, since, until, why, paused_by)
VALUES (:process, :name, statement_timestamp(), (statement_timestamp() + :lasts), :why, :paused_by)
ON CONFLICT (process, name) DO UPDATE
SET since = CASE WHEN (coalesce(outboxkit_pause.until, :param_1) > statement_timestamp()) THEN outboxkit_pause.since
    ELSE statement_timestamp() END, until = (statement_timestamp() + :lasts), why = :why, paused_by = :paused_by
RETURNING outboxkit_pause.process, outboxkit_pause.name, outboxkit_pause.since, outboxkit_pause.until,
    outboxkit_pause.why, outboxkit_pause.paused_by;
