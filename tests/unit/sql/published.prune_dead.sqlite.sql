DELETE FROM outboxkit_dead_letter
WHERE outboxkit_dead_letter.id IN (SELECT outboxkit_dead_letter.id
    FROM outboxkit_dead_letter
    WHERE outboxkit_dead_letter.dead_at < :dead_at_1 AND outboxkit_dead_letter.parked = 0
    ORDER BY outboxkit_dead_letter.id
    LIMIT :param_1 OFFSET :param_2)
RETURNING resolution;
