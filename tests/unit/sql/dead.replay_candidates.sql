SELECT outboxkit_dead_letter.side, outboxkit_dead_letter.message_id, outboxkit_dead_letter.type,
    outboxkit_dead_letter.key, outboxkit_dead_letter.topic, outboxkit_dead_letter.correlation_id,
    outboxkit_dead_letter.causation_id, outboxkit_dead_letter.content_type, outboxkit_dead_letter.content_encoding,
    outboxkit_dead_letter.queue, CASE WHEN (outboxkit_dead_letter.created_at < :param_1) THEN :param_1 WHEN
    (outboxkit_dead_letter.created_at > :param_2) THEN :param_2 ELSE outboxkit_dead_letter.created_at END AS created_at,
    outboxkit_dead_letter.reason, outboxkit_dead_letter.position
FROM outboxkit_dead_letter
WHERE outboxkit_dead_letter.resolution IS NULL AND outboxkit_dead_letter.key BETWEEN :key_1 AND :key_2 AND
    (outboxkit_dead_letter.key, outboxkit_dead_letter.dead_at) < (:param_3, :param_4) AND (outboxkit_dead_letter.key,
    outboxkit_dead_letter.dead_at) >= (:param_5, :param_6) AND (outboxkit_dead_letter.id IN (:id_1, …) OR
    outboxkit_dead_letter.message_id IN (:message_id_1, …)) AND (outboxkit_dead_letter.destination || '') = :param_7 AND
    (outboxkit_dead_letter.handler || '') = :param_8 AND (outboxkit_dead_letter.reason || '') = :param_9 AND
    (outboxkit_dead_letter.side || '') = :param_10 AND (outboxkit_dead_letter.type || '') = :param_11 AND
    replace(outboxkit_dead_letter.error, :replace_1, :replace_2) != outboxkit_dead_letter.error AND
    (outboxkit_dead_letter.side != 'outbox' OR outboxkit_dead_letter.position IS NULL) AND NOT
    coalesce(outboxkit_dead_letter.side = 'inbox' AND (outboxkit_dead_letter.reason NOT IN ('malformed', 'stale')) AND
    outboxkit_dead_letter.message_id ~ '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$' AND
    (outboxkit_dead_letter.message_id COLLATE "C") >= :fresh_from AND outboxkit_dead_letter.type != '' AND
    outboxkit_dead_letter.queue != '' AND (outboxkit_dead_letter.created_at IS NULL OR outboxkit_dead_letter.created_at
    BETWEEN :param_12 AND :param_13) AND octet_length(concat(outboxkit_dead_letter.message_id,
    outboxkit_dead_letter.type, outboxkit_dead_letter.key, outboxkit_dead_letter.topic,
    outboxkit_dead_letter.correlation_id, outboxkit_dead_letter.causation_id, outboxkit_dead_letter.content_type,
    outboxkit_dead_letter.content_encoding, outboxkit_dead_letter.queue)) <= 255, false);
