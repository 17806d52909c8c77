SELECT coalesce(max(outboxkit_dead_letter.id), 0) AS coalesce_1
FROM outboxkit_dead_letter;
