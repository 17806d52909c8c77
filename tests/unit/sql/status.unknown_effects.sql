SELECT count(*) AS count_1
FROM (SELECT outboxkit_effect.key AS key
    FROM outboxkit_effect
    WHERE outboxkit_effect.state = 'started' AND outboxkit_effect.locked_until < :now
    ORDER BY outboxkit_effect.locked_until
    LIMIT :limit) AS first;
