SELECT outboxkit_published.message_id, count(*) AS count_1
FROM outboxkit_published
WHERE outboxkit_published.destination = :destination AND outboxkit_published.published_at >= :since
    AND outboxkit_published.published_at < :until AND (:any_type = 1 OR outboxkit_published.type IN
    (:types, …)) AND outboxkit_published.message_id IN (SELECT outboxkit_published.message_id
    FROM outboxkit_published
    WHERE outboxkit_published.destination = :destination AND outboxkit_published.published_at >=
        :since AND outboxkit_published.published_at < :until AND (:any_type = 1 OR
        outboxkit_published.type IN (:types, …))
    GROUP BY outboxkit_published.message_id
    HAVING count(*) > 1)
GROUP BY outboxkit_published.message_id
HAVING min(outboxkit_published.payload) < max(outboxkit_published.payload);
