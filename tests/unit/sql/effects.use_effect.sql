UPDATE outboxkit_effect
SET used_at=greatest(outboxkit_effect.used_at, clock_timestamp(), :made), handler=coalesce(outboxkit_effect.handler,
    :by_handler), message_id=coalesce(outboxkit_effect.message_id, :by_message_id)
WHERE outboxkit_effect.key = :at_key
RETURNING outboxkit_effect.state, outboxkit_effect.token, outboxkit_effect.result, outboxkit_effect.started_at,
    outboxkit_effect.locked_until, clock_timestamp() AS now;
