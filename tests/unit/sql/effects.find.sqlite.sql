SELECT outboxkit_effect.state, outboxkit_effect.token, outboxkit_effect.result,
    outboxkit_effect.started_at, outboxkit_effect.locked_until, strftime('%Y-%m-%d %H:%M:%f000',
    'now') AS now
FROM outboxkit_effect
WHERE outboxkit_effect."key" = :at_key;
