SELECT outboxkit_dead_letter.id, coalesce(outboxkit_dead_letter.position, -1) AS place
FROM outboxkit_dead_letter
WHERE outboxkit_dead_letter.resolution IS NULL AND (outboxkit_dead_letter.id IN (:id_1, …) OR
    outboxkit_dead_letter.message_id IN (:message_id_1, …)) AND outboxkit_dead_letter.type = :type_1
    AND outboxkit_dead_letter."key" = :key_1 AND outboxkit_dead_letter.reason = :reason_1 AND
    outboxkit_dead_letter.side = :side_1 AND outboxkit_dead_letter.destination = :destination_1 AND
    outboxkit_dead_letter.dead_at < :dead_at_1 AND outboxkit_dead_letter.dead_at >= :dead_at_2 AND
    outboxkit_dead_letter.id <= :upto AND (coalesce(outboxkit_dead_letter.position, -1) >
    :after_position OR coalesce(outboxkit_dead_letter.position, -1) = :after_position AND
    outboxkit_dead_letter.id > :after_id)
ORDER BY place, outboxkit_dead_letter.id
LIMIT :limit OFFSET :param_1;
