INSERT INTO outboxkit_effect ("key", state, token, started_at, locked_until)
VALUES (:key, 'started', :token, strftime('%Y-%m-%d %H:%M:%f000', 'now'), strftime('%Y-%m-%d
    %H:%M:%f000', 'now', :lease))
ON CONFLICT ("key") DO NOTHING
RETURNING "key";
