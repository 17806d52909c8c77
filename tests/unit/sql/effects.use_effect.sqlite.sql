UPDATE outboxkit_effect
SET used_at=max(outboxkit_effect.used_at, coalesce(strftime('%Y-%m-%d %H:%M:%f000', 'now'),
    outboxkit_effect.used_at), coalesce(:made, outboxkit_effect.used_at)),
    handler=coalesce(outboxkit_effect.handler, :by_handler),
    message_id=coalesce(outboxkit_effect.message_id, :by_message_id)
WHERE outboxkit_effect."key" = :at_key
RETURNING state, token, result, started_at, locked_until, strftime('%Y-%m-%d %H:%M:%f000', 'now') AS
    now;
