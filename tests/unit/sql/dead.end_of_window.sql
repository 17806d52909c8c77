SELECT CASE WHEN (outboxkit_dead_letter.dead_at < :param_1) THEN :param_1 WHEN (outboxkit_dead_letter.dead_at >
    :param_2) THEN :param_2 ELSE outboxkit_dead_letter.dead_at END AS dead_at, outboxkit_dead_letter.id
FROM outboxkit_dead_letter
WHERE outboxkit_dead_letter.resolution IS NULL AND outboxkit_dead_letter.key BETWEEN :key_1 AND :key_2 AND
    (outboxkit_dead_letter.key, outboxkit_dead_letter.dead_at) < (:param_3, :param_4) AND (outboxkit_dead_letter.key,
    outboxkit_dead_letter.dead_at) >= (:param_5, :param_6)
ORDER BY outboxkit_dead_letter.key DESC, outboxkit_dead_letter.dead_at DESC, outboxkit_dead_letter.id DESC
LIMIT 1 OFFSET :window - 1;
