SELECT count(first.resolution) AS count_1, count(*) AS count_2
FROM (SELECT outboxkit_dead_letter.resolution AS resolution
    FROM outboxkit_dead_letter
    ORDER BY outboxkit_dead_letter.id
    LIMIT :limit OFFSET :param_1) AS first;
