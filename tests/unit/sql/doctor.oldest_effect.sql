SELECT min(outboxkit_effect.used_at) AS min_1
FROM outboxkit_effect
WHERE outboxkit_effect.message_id IS NULL;
