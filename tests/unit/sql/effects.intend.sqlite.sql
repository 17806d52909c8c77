INSERT INTO outboxkit_effect ("key", state, token, started_at, locked_until, used_at, handler,
    message_id)
VALUES (:key, 'started', :token, strftime('%Y-%m-%d %H:%M:%f000', 'now'), strftime('%Y-%m-%d
    %H:%M:%f000', 'now', :lease), max(strftime('%Y-%m-%d %H:%M:%f000', 'now'), coalesce(:made,
    strftime('%Y-%m-%d %H:%M:%f000', 'now'))), :handler, :message_id)
ON CONFLICT ("key") DO NOTHING
RETURNING "key";
