INSERT INTO outboxkit_pause (process, name, since, until, why, paused_by)
VALUES (:process, :name, strftime('%Y-%m-%d %H:%M:%f000', 'now'), strftime('%Y-%m-%d %H:%M:%f000',
    'now', :lasts), :why, :paused_by)
ON CONFLICT (process, name) DO UPDATE
SET since = CASE WHEN (coalesce(outboxkit_pause.until, :param_1) > strftime('%Y-%m-%d %H:%M:%f000',
    'now')) THEN outboxkit_pause.since ELSE strftime('%Y-%m-%d %H:%M:%f000', 'now') END, until =
    strftime('%Y-%m-%d %H:%M:%f000', 'now', :lasts), why = :why, paused_by = :paused_by
RETURNING process, name, since, until, why, paused_by;
