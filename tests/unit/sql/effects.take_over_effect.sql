UPDATE outboxkit_effect
SET token=:new_token, locked_until=(clock_timestamp() + :lease)
WHERE outboxkit_effect.key = :at_key AND outboxkit_effect.token = :at_token AND outboxkit_effect.state = 'started';
