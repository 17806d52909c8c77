SELECT count(*) AS count_1
FROM (SELECT DISTINCT first.key AS key
    FROM (SELECT outboxkit_dead_letter.key AS key
        FROM outboxkit_dead_letter
        WHERE outboxkit_dead_letter.parked
        ORDER BY outboxkit_dead_letter.key
        LIMIT :limit) AS first) AS keys;
