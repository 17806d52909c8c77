UPDATE outboxkit_effect
SET locked_until=clock_timestamp()
WHERE outboxkit_effect.key = :at_key AND outboxkit_effect.token = :at_token AND outboxkit_effect.state = 'started';
