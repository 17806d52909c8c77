SELECT count(*) AS count_1
FROM outboxkit_dead_letter
WHERE outboxkit_dead_letter.resolution IS NULL AND outboxkit_dead_letter.key BETWEEN :key_1 AND :key_2 AND
    (outboxkit_dead_letter.key, outboxkit_dead_letter.dead_at) < (:param_1, :param_2) AND (outboxkit_dead_letter.key,
    outboxkit_dead_letter.dead_at) >= (:param_3, :param_4) AND (outboxkit_dead_letter.id IN (:id_1, …) OR
    outboxkit_dead_letter.message_id IN (:message_id_1, …)) AND (outboxkit_dead_letter.destination || '') = :param_5 AND
    (outboxkit_dead_letter.handler || '') = :param_6 AND (outboxkit_dead_letter.reason || '') = :param_7 AND
    (outboxkit_dead_letter.side || '') = :param_8 AND (outboxkit_dead_letter.type || '') = :param_9 AND
    replace(outboxkit_dead_letter.error, :replace_1, :replace_2) != outboxkit_dead_letter.error AND
    outboxkit_dead_letter.id <= :upto;
