SELECT outboxkit_dead_letter.id, outboxkit_dead_letter.dead_at, outboxkit_dead_letter.type, outboxkit_dead_letter.error
FROM outboxkit_dead_letter
WHERE outboxkit_dead_letter.resolution IS NULL
ORDER BY outboxkit_dead_letter.dead_at, outboxkit_dead_letter.id
LIMIT 1;
