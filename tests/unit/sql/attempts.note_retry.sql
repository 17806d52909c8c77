INSERT INTO outboxkit_attempt (queue, message_id, handler, type, key, attempt, error, next_at, first_failed_at,
    touched_at) SELECT :queue AS anon_1, :message_id AS anon_2, :handler AS anon_3, :type AS anon_4, :key AS anon_5,
    :attempt AS anon_6, :error AS anon_7, :next_at AS anon_8, CURRENT_TIMESTAMP AS current_timestamp_1,
    CURRENT_TIMESTAMP AS current_timestamp__1
WHERE (SELECT count(*) AS count_1
    FROM (SELECT 1
        FROM outboxkit_attempt
        WHERE outboxkit_attempt.queue = :queue AND outboxkit_attempt.error IS NOT NULL
        LIMIT :most) AS noted) < :most
ON CONFLICT (queue, message_id) DO UPDATE
SET touched_at = excluded.touched_at, handler = excluded.handler, type = excluded.type, key = excluded.key, attempt =
    excluded.attempt, error = excluded.error, next_at = excluded.next_at;
