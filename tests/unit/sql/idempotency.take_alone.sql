INSERT INTO outboxkit_idempotency (scope, principal, key, fingerprint, state, token, locked_until, created_at,
    expires_at) SELECT :at_scope AS anon_1, :at_principal AS anon_2, :at_key AS anon_3, :asked AS anon_4, 'processing',
    :token_now AS anon_5, statement_timestamp() + :lease AS anon_6, statement_timestamp() AS statement_timestamp_1,
    statement_timestamp() + :retention AS anon_7
WHERE CASE WHEN (EXISTS (SELECT *
        FROM outboxkit_idempotency
        WHERE outboxkit_idempotency.scope = :at_scope AND outboxkit_idempotency.principal = :at_principal AND
            outboxkit_idempotency.key = :at_key AND outboxkit_idempotency.expires_at > statement_timestamp() AND
            (outboxkit_idempotency.state = 'done' OR outboxkit_idempotency.locked_until IS NULL OR
            outboxkit_idempotency.locked_until > statement_timestamp() OR outboxkit_idempotency.fingerprint != :asked)))
            THEN false WHEN pg_try_advisory_xact_lock_shared(:request_part, :asked_part) THEN
            pg_try_advisory_xact_lock(:request_lock # 'outboxkit_idempotency'::regclass::oid::bigint) ELSE false END
ON CONFLICT (scope, principal, key) DO UPDATE
SET fingerprint = excluded.fingerprint, state = excluded.state, token = excluded.token, steps = CASE WHEN
    (outboxkit_idempotency.expires_at <= statement_timestamp()) THEN NULL ELSE outboxkit_idempotency.steps END,
    response_status = NULL, response_headers = NULL, response_body = NULL, locked_until = excluded.locked_until,
    created_at = CASE WHEN (outboxkit_idempotency.expires_at <= statement_timestamp()) THEN excluded.created_at ELSE
    outboxkit_idempotency.created_at END, expires_at = excluded.expires_at
WHERE outboxkit_idempotency.expires_at <= statement_timestamp() OR outboxkit_idempotency.state = 'processing' AND
    outboxkit_idempotency.locked_until <= statement_timestamp() AND outboxkit_idempotency.fingerprint =
    excluded.fingerprint
RETURNING outboxkit_idempotency.expires_at, outboxkit_idempotency.steps;
