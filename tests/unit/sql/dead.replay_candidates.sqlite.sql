SELECT outboxkit_dead_letter.side, outboxkit_dead_letter.message_id, outboxkit_dead_letter.type,
    outboxkit_dead_letter."key", outboxkit_dead_letter.topic, outboxkit_dead_letter.correlation_id,
    outboxkit_dead_letter.causation_id, outboxkit_dead_letter.content_type,
    outboxkit_dead_letter.content_encoding, outboxkit_dead_letter.queue, CASE WHEN
    (outboxkit_dead_letter.created_at < :param_1) THEN :param_1 WHEN
    (outboxkit_dead_letter.created_at > :param_2) THEN :param_2 ELSE
    outboxkit_dead_letter.created_at END AS created_at, outboxkit_dead_letter.reason,
    outboxkit_dead_letter.position
FROM outboxkit_dead_letter
WHERE outboxkit_dead_letter.resolution IS NULL AND (outboxkit_dead_letter.id IN (:id_1, …) OR
    outboxkit_dead_letter.message_id IN (:message_id_1, …)) AND outboxkit_dead_letter.type = :type_1
    AND outboxkit_dead_letter."key" = :key_1 AND outboxkit_dead_letter.reason = :reason_1 AND
    outboxkit_dead_letter.side = :side_1 AND outboxkit_dead_letter.destination = :destination_1 AND
    outboxkit_dead_letter.dead_at < :dead_at_1 AND outboxkit_dead_letter.dead_at >= :dead_at_2 AND
    (outboxkit_dead_letter.side != 'outbox' OR outboxkit_dead_letter.position IS NULL);
