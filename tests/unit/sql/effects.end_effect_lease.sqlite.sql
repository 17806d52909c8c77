UPDATE outboxkit_effect
SET locked_until=strftime('%Y-%m-%d %H:%M:%f000', 'now')
WHERE outboxkit_effect."key" = :at_key AND outboxkit_effect.token = :at_token AND
    outboxkit_effect.state = 'started';
