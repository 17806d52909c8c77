SELECT min(outboxkit_published.published_at) AS min_1
FROM outboxkit_published;
