SELECT min(outboxkit_effect.started_at) AS min_1
FROM outboxkit_effect;
