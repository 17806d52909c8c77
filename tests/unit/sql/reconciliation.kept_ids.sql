SELECT outboxkit_published.message_id, outboxkit_published.type, outboxkit_published.queue,
    outboxkit_published.published_at > :in_flight AS is_young,
    substr(md5(outboxkit_published.payload), 1, 12) AS digest
FROM outboxkit_published
WHERE outboxkit_published.destination = :destination AND outboxkit_published.published_at >= :since
    AND outboxkit_published.published_at < :until AND (:any_type OR outboxkit_published.type = ANY
    (:types::VARCHAR(255)[]))
ORDER BY outboxkit_published.message_id COLLATE "C", outboxkit_published.type,
    outboxkit_published.queue;
