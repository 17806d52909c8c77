SELECT count(*) AS count_1, min(outboxkit_published.message_id) AS min_1,
    max(outboxkit_published.message_id) AS max_1, min(outboxkit_published.published_at) AS min_2,
    max(outboxkit_published.published_at) AS max_2
FROM outboxkit_published
WHERE outboxkit_published.destination = :destination AND outboxkit_published.published_at >= :since
    AND outboxkit_published.published_at < :until AND (:any_type = 1 OR outboxkit_published.type IN
    (:types, …));
