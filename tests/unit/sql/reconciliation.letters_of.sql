SELECT outboxkit_dead_letter.message_id, outboxkit_dead_letter.queue, outboxkit_dead_letter.handler,
    outboxkit_dead_letter.resolution, CASE WHEN (outboxkit_dead_letter.resolved_at < :param_1) THEN :param_1 WHEN
    (outboxkit_dead_letter.resolved_at > :param_2) THEN :param_2 ELSE outboxkit_dead_letter.resolved_at END AS
    resolved_at
FROM outboxkit_dead_letter
WHERE outboxkit_dead_letter.side = 'inbox' AND outboxkit_dead_letter.message_id = ANY (:ids::VARCHAR(255)[]);
