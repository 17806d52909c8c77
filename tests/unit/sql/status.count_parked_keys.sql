SELECT count(DISTINCT first.key) AS count_1
FROM (SELECT outboxkit_dead_letter.key AS key
    FROM outboxkit_dead_letter
    WHERE outboxkit_dead_letter.parked
    ORDER BY outboxkit_dead_letter.key
    LIMIT :limit) AS first;
