DELETE FROM outboxkit_pause
WHERE outboxkit_pause.process = :process AND outboxkit_pause.name = :name
RETURNING process, name, since, until, why, paused_by, coalesce(until, :param_1) >
    strftime('%Y-%m-%d %H:%M:%f000', 'now') AS was_active;
