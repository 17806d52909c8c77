SELECT outboxkit_published.message_id, outboxkit_published.type, outboxkit_published.queue,
    max(outboxkit_published.published_at) > :in_flight AS is_young, count(*) AS count_1
FROM outboxkit_published
WHERE outboxkit_published.destination = :destination AND outboxkit_published.published_at >= :since AND
    outboxkit_published.published_at < :until AND (:any_type OR outboxkit_published.type = ANY (:types::VARCHAR(255)[]))
GROUP BY outboxkit_published.message_id, outboxkit_published.type, outboxkit_published.queue;
