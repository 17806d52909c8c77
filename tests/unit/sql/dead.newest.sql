SELECT outboxkit_dead_letter.id, outboxkit_dead_letter.side, outboxkit_dead_letter.queue, outboxkit_dead_letter.handler,
    outboxkit_dead_letter.message_id, outboxkit_dead_letter.type, outboxkit_dead_letter.topic,
    outboxkit_dead_letter.key, outboxkit_dead_letter.correlation_id, outboxkit_dead_letter.causation_id,
    outboxkit_dead_letter.content_type, outboxkit_dead_letter.content_encoding, outboxkit_dead_letter.version, CASE WHEN
    (outboxkit_dead_letter.created_at < :param_1) THEN :param_1 WHEN (outboxkit_dead_letter.created_at > :param_2) THEN
    :param_2 ELSE outboxkit_dead_letter.created_at END AS created_at, outboxkit_dead_letter.reason,
    outboxkit_dead_letter.error, outboxkit_dead_letter.attempts, CASE WHEN (outboxkit_dead_letter.dead_at < :param_3)
    THEN :param_3 WHEN (outboxkit_dead_letter.dead_at > :param_4) THEN :param_4 ELSE outboxkit_dead_letter.dead_at END
    AS dead_at, outboxkit_dead_letter.position, outboxkit_dead_letter.parked, CASE WHEN
    (outboxkit_dead_letter.first_failed_at < :param_5) THEN :param_5 WHEN (outboxkit_dead_letter.first_failed_at >
    :param_6) THEN :param_6 ELSE outboxkit_dead_letter.first_failed_at END AS first_failed_at,
    outboxkit_dead_letter.discard_unroutable, outboxkit_dead_letter.resolution, CASE WHEN
    (outboxkit_dead_letter.resolved_at < :param_7) THEN :param_7 WHEN (outboxkit_dead_letter.resolved_at > :param_8)
    THEN :param_8 ELSE outboxkit_dead_letter.resolved_at END AS resolved_at, outboxkit_dead_letter.resolved_by,
    outboxkit_dead_letter.destination, outboxkit_dead_letter.reply
FROM outboxkit_dead_letter
WHERE outboxkit_dead_letter.resolution IS NULL AND outboxkit_dead_letter.key BETWEEN :key_1 AND :key_2 AND
    (outboxkit_dead_letter.key, outboxkit_dead_letter.dead_at) < (:param_9, :param_10) AND (outboxkit_dead_letter.key,
    outboxkit_dead_letter.dead_at) >= (:param_11, :param_12) AND (outboxkit_dead_letter.id IN (:id_1, …) OR
    outboxkit_dead_letter.message_id IN (:message_id_1, …)) AND (outboxkit_dead_letter.destination || '') = :param_13
    AND (outboxkit_dead_letter.handler || '') = :param_14 AND (outboxkit_dead_letter.reason || '') = :param_15 AND
    (outboxkit_dead_letter.side || '') = :param_16 AND (outboxkit_dead_letter.type || '') = :param_17 AND
    replace(outboxkit_dead_letter.error, :replace_1, :replace_2) != outboxkit_dead_letter.error
ORDER BY outboxkit_dead_letter.key DESC, outboxkit_dead_letter.dead_at DESC, outboxkit_dead_letter.id DESC
LIMIT :limit;
