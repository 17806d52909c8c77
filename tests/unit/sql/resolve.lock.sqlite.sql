SELECT outboxkit_dead_letter.id, outboxkit_dead_letter.position, outboxkit_dead_letter."key",
    outboxkit_dead_letter.parked, outboxkit_dead_letter.side, outboxkit_dead_letter.destination
FROM outboxkit_dead_letter
WHERE outboxkit_dead_letter.resolution IS NULL AND outboxkit_dead_letter.id IN (:ids, …)
ORDER BY outboxkit_dead_letter.id;
