SELECT count(*) AS count_1, min(outboxkit_published.message_id COLLATE "C") AS min_1, max(outboxkit_published.message_id
    COLLATE "C") AS max_1, min(outboxkit_published.published_at) AS min_2, max(outboxkit_published.published_at) AS
    max_2
FROM outboxkit_published
WHERE outboxkit_published.destination = :destination AND outboxkit_published.published_at >= :since AND
    outboxkit_published.published_at < :until AND (:any_type OR outboxkit_published.type = ANY (:types::VARCHAR(255)[]));
