DELETE FROM outboxkit_published_default
WHERE (outboxkit_published_default.published_at, outboxkit_published_default.position) IN (SELECT
    outboxkit_published_default.published_at, outboxkit_published_default.position
    FROM outboxkit_published_default
    WHERE outboxkit_published_default.published_at < :published_at_1
    ORDER BY outboxkit_published_default.published_at, outboxkit_published_default.position
    LIMIT :param_1);
