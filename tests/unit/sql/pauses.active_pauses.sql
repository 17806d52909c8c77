SELECT outboxkit_pause.process, outboxkit_pause.name, outboxkit_pause.since, outboxkit_pause.until, outboxkit_pause.why,
    outboxkit_pause.paused_by
FROM outboxkit_pause
WHERE coalesce(outboxkit_pause.until, :param_1) > statement_timestamp()
ORDER BY outboxkit_pause.process, outboxkit_pause.name;
