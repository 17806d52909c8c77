DELETE FROM outboxkit_effect
WHERE outboxkit_effect.key = :at_key AND outboxkit_effect.token = :at_token AND outboxkit_effect.state = 'started';
