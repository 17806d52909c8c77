SELECT count(*) AS count_1, min(outboxkit_published.published_at) AS min_1, max(outboxkit_published.published_at) AS
    max_1
FROM outboxkit_published
WHERE outboxkit_published.destination = :destination AND outboxkit_published.published_at >= :since AND
    outboxkit_published.published_at < :until AND outboxkit_published.type = :type_1 AND outboxkit_published.key =
    :key_1;
