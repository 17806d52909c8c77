SELECT outboxkit_published.type, outboxkit_published.payload, outboxkit_published.headers,
    outboxkit_published.content_type, outboxkit_published.content_encoding, outboxkit_published.version
FROM outboxkit_published
WHERE outboxkit_published.published_at = :published_at AND outboxkit_published.position = :position;
