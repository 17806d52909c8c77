UPDATE outboxkit_effect
SET state=:new_state, result=:new_result, finished_at=clock_timestamp()
WHERE outboxkit_effect.key = :at_key AND outboxkit_effect.token = :at_token AND outboxkit_effect.state = 'started';
