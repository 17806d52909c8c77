SELECT outboxkit_dead_letter.dead_at, outboxkit_dead_letter.parked
FROM outboxkit_dead_letter
ORDER BY outboxkit_dead_letter.id
LIMIT 1;
