SELECT count(*) AS count_1
FROM (SELECT outboxkit_published.position AS position
    FROM outboxkit_published
    ORDER BY outboxkit_published.published_at, outboxkit_published.position
    LIMIT :limit) AS first;
