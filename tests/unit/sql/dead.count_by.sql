SELECT substr(outboxkit_dead_letter.error, 1, 200) AS value, count(*) AS rows, CASE WHEN
    (min(outboxkit_dead_letter.dead_at) < :param_1) THEN :param_1 WHEN (min(outboxkit_dead_letter.dead_at) > :param_2)
    THEN :param_2 ELSE min(outboxkit_dead_letter.dead_at) END AS first, CASE WHEN (max(outboxkit_dead_letter.dead_at) <
    :param_3) THEN :param_3 WHEN (max(outboxkit_dead_letter.dead_at) > :param_4) THEN :param_4 ELSE
    max(outboxkit_dead_letter.dead_at) END AS last, min(outboxkit_dead_letter.id) AS example
FROM outboxkit_dead_letter
WHERE outboxkit_dead_letter.resolution IS NULL AND outboxkit_dead_letter.key BETWEEN :key_1 AND :key_2 AND
    (outboxkit_dead_letter.key, outboxkit_dead_letter.dead_at) < (:param_5, :param_6) AND (outboxkit_dead_letter.key,
    outboxkit_dead_letter.dead_at) >= (:param_7, :param_8) AND (outboxkit_dead_letter.id IN (:id_1, …) OR
    outboxkit_dead_letter.message_id IN (:message_id_1, …)) AND (outboxkit_dead_letter.destination || '') = :param_9 AND
    (outboxkit_dead_letter.handler || '') = :param_10 AND (outboxkit_dead_letter.reason || '') = :param_11 AND
    (outboxkit_dead_letter.side || '') = :param_12 AND (outboxkit_dead_letter.type || '') = :param_13 AND
    replace(outboxkit_dead_letter.error, :replace_1, :replace_2) != outboxkit_dead_letter.error
GROUP BY substr(outboxkit_dead_letter.error, 1, 200)
ORDER BY count(*) DESC, example
LIMIT :limit;
