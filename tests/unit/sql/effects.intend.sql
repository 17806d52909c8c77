INSERT INTO outboxkit_effect (key, state, token, started_at, locked_until, used_at, handler, message_id)
VALUES (:key, 'started', :token, clock_timestamp(), (clock_timestamp() + :lease), greatest(clock_timestamp(), :made),
    :handler, :message_id)
ON CONFLICT (key) DO NOTHING
RETURNING outboxkit_effect.key;
