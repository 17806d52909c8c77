SELECT count(*) AS count_1, max(first.published_at) AS max_1, avg(CAST(EXTRACT(epoch
            FROM first.published_at - first.created_at) AS DOUBLE PRECISION)) AS avg_1
FROM (SELECT outboxkit_published.published_at AS published_at, outboxkit_published.created_at AS created_at
    FROM outboxkit_published
    WHERE outboxkit_published.published_at >= :since AND outboxkit_published.published_at < :until
    ORDER BY outboxkit_published.published_at, outboxkit_published.position
    LIMIT :limit) AS first;
