DELETE FROM outboxkit_pause
WHERE outboxkit_pause.process = :process AND outboxkit_pause.name = :name
RETURNING outboxkit_pause.process, outboxkit_pause.name, outboxkit_pause.since, outboxkit_pause.until,
    outboxkit_pause.why, outboxkit_pause.paused_by, coalesce(outboxkit_pause.until, :param_1) > statement_timestamp() AS
    was_active;
