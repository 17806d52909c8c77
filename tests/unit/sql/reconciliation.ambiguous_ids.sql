SELECT outboxkit_published.message_id, count(*) AS count_1
FROM outboxkit_published
WHERE outboxkit_published.destination = :destination AND outboxkit_published.published_at >= :since AND
    outboxkit_published.published_at < :until AND (:any_type OR outboxkit_published.type = ANY (:types::VARCHAR(255)[]))
    AND outboxkit_published.message_id IN (SELECT outboxkit_published.message_id
    FROM outboxkit_published
    WHERE outboxkit_published.destination = :destination AND outboxkit_published.published_at >= :since AND
        outboxkit_published.published_at < :until AND (:any_type OR outboxkit_published.type = ANY
        (:types::VARCHAR(255)[]))
    GROUP BY outboxkit_published.message_id
    HAVING count(*) > 1)
GROUP BY outboxkit_published.message_id
HAVING min(substr(md5(outboxkit_published.payload), 1, 12)) < max(substr(md5(outboxkit_published.payload), 1, 12));
