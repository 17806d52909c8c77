UPDATE outboxkit_effect
SET state='skipped', token=:new_token, finished_at=clock_timestamp()
WHERE outboxkit_effect.key = :at_key AND outboxkit_effect.token = :at_token AND outboxkit_effect.state = 'started';
