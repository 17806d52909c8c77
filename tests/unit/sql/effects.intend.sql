INSERT INTO outboxkit_effect (key, state, token, started_at, locked_until)
VALUES (:key, 'started', :token, clock_timestamp(), (clock_timestamp() + :lease))
ON CONFLICT (key) DO NOTHING
RETURNING outboxkit_effect.key;
