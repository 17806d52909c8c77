INSERT INTO outboxkit_outbox (message_id, type, payload, key, topic, headers, correlation_id, causation_id, created_at,
    content_type, content_encoding, queue, version) SELECT coalesce(outboxkit_dead_letter.message_id, :stand_in) AS
    message_id, coalesce(outboxkit_dead_letter.type, :stand_in) AS type, outboxkit_dead_letter.payload,
    outboxkit_dead_letter.key, outboxkit_dead_letter.topic, :headers AS anon_1, outboxkit_dead_letter.correlation_id,
    outboxkit_dead_letter.causation_id, CASE WHEN (outboxkit_dead_letter.created_at < :param_1) THEN :param_1 WHEN
    (outboxkit_dead_letter.created_at > :param_2) THEN :param_2 ELSE outboxkit_dead_letter.created_at END AS created_at,
    outboxkit_dead_letter.content_type, outboxkit_dead_letter.content_encoding, outboxkit_dead_letter.queue,
    outboxkit_dead_letter.version
FROM outboxkit_dead_letter
WHERE outboxkit_dead_letter.resolution IS NULL AND outboxkit_dead_letter.id = :id;
