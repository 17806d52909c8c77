UPDATE outboxkit_idempotency
SET steps=:finished, locked_until=(statement_timestamp() + :lease)
WHERE outboxkit_idempotency.scope = :at_scope AND outboxkit_idempotency.principal = :at_principal AND
    outboxkit_idempotency.key = :at_key AND outboxkit_idempotency.token = :at_token AND outboxkit_idempotency.state =
    'processing'
RETURNING outboxkit_idempotency.token;
