SELECT outboxkit_published.published_at
FROM outboxkit_published
WHERE outboxkit_published.published_at >= :since AND outboxkit_published.published_at < :until
ORDER BY outboxkit_published.published_at, outboxkit_published.position
LIMIT 1 OFFSET :window - 1;
