SELECT outboxkit_idempotency.fingerprint, outboxkit_idempotency.state, outboxkit_idempotency.token,
    outboxkit_idempotency.locked_until, outboxkit_idempotency.expires_at, outboxkit_idempotency.response_status,
    outboxkit_idempotency.response_headers, outboxkit_idempotency.response_body, statement_timestamp() AS now
FROM outboxkit_idempotency
WHERE outboxkit_idempotency.scope = :at_scope AND outboxkit_idempotency.principal = :at_principal AND
    outboxkit_idempotency.key = :at_key AND outboxkit_idempotency.expires_at > statement_timestamp();
