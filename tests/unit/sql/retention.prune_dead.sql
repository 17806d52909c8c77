DELETE FROM outboxkit_dead_letter
WHERE outboxkit_dead_letter.id IN (SELECT outboxkit_dead_letter.id
    FROM outboxkit_dead_letter
    WHERE outboxkit_dead_letter.dead_at < :dead_at_1 AND NOT outboxkit_dead_letter.parked
    ORDER BY outboxkit_dead_letter.id
    LIMIT :param_1
    FOR UPDATE SKIP LOCKED)
RETURNING outboxkit_dead_letter.resolution;
