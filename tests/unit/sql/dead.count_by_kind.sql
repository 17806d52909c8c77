SELECT outboxkit_dead_letter.side, outboxkit_dead_letter.type, outboxkit_dead_letter.reason,
    count(*) AS count_1, max(outboxkit_dead_letter.id) AS max_1
FROM outboxkit_dead_letter
WHERE outboxkit_dead_letter.resolution IS NULL AND (outboxkit_dead_letter.id IN (:id_1, …) OR
    outboxkit_dead_letter.message_id IN (:message_id_1, …)) AND outboxkit_dead_letter.type = :type_1
    AND outboxkit_dead_letter.key = :key_1 AND outboxkit_dead_letter.reason = :reason_1 AND
    outboxkit_dead_letter.side = :side_1 AND outboxkit_dead_letter.destination = :destination_1 AND
    outboxkit_dead_letter.dead_at < :dead_at_1 AND outboxkit_dead_letter.dead_at >= :dead_at_2
GROUP BY outboxkit_dead_letter.side, outboxkit_dead_letter.type, outboxkit_dead_letter.reason;
