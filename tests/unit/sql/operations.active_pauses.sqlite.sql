SELECT outboxkit_pause.process, outboxkit_pause.name, outboxkit_pause.since, outboxkit_pause.until,
    outboxkit_pause.why, outboxkit_pause.paused_by
FROM outboxkit_pause
WHERE coalesce(outboxkit_pause.until, :param_1) > strftime('%Y-%m-%d %H:%M:%f000', 'now')
ORDER BY outboxkit_pause.process, outboxkit_pause.name;
