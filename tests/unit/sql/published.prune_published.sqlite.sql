DELETE FROM outboxkit_published
WHERE (outboxkit_published.published_at, outboxkit_published.position) IN (SELECT
    outboxkit_published.published_at, outboxkit_published.position
    FROM outboxkit_published
    WHERE outboxkit_published.published_at < :published_at_1
    ORDER BY outboxkit_published.published_at, outboxkit_published.position
    LIMIT :param_1 OFFSET :param_2);
