SELECT outboxkit_published.published_at, outboxkit_published.position, outboxkit_published.message_id
FROM outboxkit_published, unnest(:ids::VARCHAR(255)[]) WITH ORDINALITY AS given(ids, place)
WHERE outboxkit_published.destination = :destination AND outboxkit_published.published_at >= :since AND
    outboxkit_published.published_at < :until AND outboxkit_published.type = :type_1 AND outboxkit_published.key =
    :key_1 AND outboxkit_published.message_id = given.ids;
