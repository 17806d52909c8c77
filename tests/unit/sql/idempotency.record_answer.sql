UPDATE outboxkit_idempotency
SET state='done', steps=NULL, response_status=:status, response_headers=:headers, response_body=:body, locked_until=NULL
WHERE outboxkit_idempotency.scope = :at_scope AND outboxkit_idempotency.principal = :at_principal AND
    outboxkit_idempotency.key = :at_key AND outboxkit_idempotency.token = :at_token AND outboxkit_idempotency.state =
    'processing'
RETURNING outboxkit_idempotency.token;
