INSERT INTO outboxkit_outbox (position, message_id, type, payload, key, topic, headers, correlation_id, causation_id,
    created_at, content_type, content_encoding, queue, version, discard_unroutable, destination, reply, due_at, held)
    SELECT outboxkit_dead_letter.position, outboxkit_dead_letter.message_id, outboxkit_dead_letter.type,
    outboxkit_dead_letter.payload, outboxkit_dead_letter.key, outboxkit_dead_letter.topic, coalesce(:headers,
    outboxkit_dead_letter.headers) AS coalesce_1, outboxkit_dead_letter.correlation_id,
    outboxkit_dead_letter.causation_id, CASE WHEN (outboxkit_dead_letter.created_at < :param_1) THEN :param_1 WHEN
    (outboxkit_dead_letter.created_at > :param_2) THEN :param_2 ELSE outboxkit_dead_letter.created_at END AS created_at,
    outboxkit_dead_letter.content_type, outboxkit_dead_letter.content_encoding, outboxkit_dead_letter.queue,
    outboxkit_dead_letter.version, outboxkit_dead_letter.discard_unroutable, outboxkit_dead_letter.destination,
    outboxkit_dead_letter.reply, :now AS anon_1, true AS anon_2
FROM outboxkit_dead_letter
WHERE outboxkit_dead_letter.resolution IS NULL AND outboxkit_dead_letter.side = 'outbox' AND
    outboxkit_dead_letter.position IS NOT NULL AND outboxkit_dead_letter.id = ANY (:ids::BIGINT[])
ON CONFLICT (position) DO NOTHING
RETURNING outboxkit_outbox.position;
