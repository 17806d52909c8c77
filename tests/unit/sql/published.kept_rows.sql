SELECT outboxkit_published.published_at, outboxkit_published.position, outboxkit_published.message_id,
    outboxkit_published.type, outboxkit_published.payload, outboxkit_published.key, outboxkit_published.topic,
    outboxkit_published.headers, outboxkit_published.correlation_id, outboxkit_published.causation_id,
    outboxkit_published.created_at, outboxkit_published.content_type, outboxkit_published.content_encoding,
    outboxkit_published.queue, outboxkit_published.version
FROM outboxkit_published
WHERE outboxkit_published.published_at BETWEEN :first_at AND :last_at AND outboxkit_published.position = ANY
    (:positions::BIGINT[])
ORDER BY outboxkit_published.published_at, outboxkit_published.position;
