WITH dead AS
(SELECT first.key AS key, count(*) AS rows
    FROM (SELECT outboxkit_dead_letter.key AS key, outboxkit_dead_letter.destination AS destination
        FROM outboxkit_dead_letter
        WHERE outboxkit_dead_letter.parked
        ORDER BY outboxkit_dead_letter.key
        LIMIT :limit) AS first
    WHERE first.destination = :destination
    GROUP BY first.key),
behind AS
(SELECT first.key AS key, count(*) AS rows
    FROM (SELECT outboxkit_outbox.key AS key
        FROM outboxkit_outbox
        WHERE outboxkit_outbox.destination = :destination AND outboxkit_outbox.due_at >= :parked_until
        ORDER BY outboxkit_outbox.due_at, outboxkit_outbox.position
        LIMIT :limit) AS first
    GROUP BY first.key)
SELECT dead.key, coalesce(behind.rows, 0) AS coalesce_1, dead.rows, count(*) OVER () AS anon_1, sum(dead.rows) OVER ()
    AS anon_2
FROM dead LEFT OUTER JOIN behind ON behind.key = dead.key
ORDER BY coalesce(behind.rows, 0) DESC, dead.key
LIMIT :top;
