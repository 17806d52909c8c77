INSERT INTO outboxkit_idempotency (scope, principal, "key", fingerprint, state, token, locked_until,
    created_at, expires_at) SELECT :at_scope AS anon_1, :at_principal AS anon_2, :at_key AS anon_3,
    :asked AS anon_4, 'processing', :token_now AS anon_5, strftime('%Y-%m-%d %H:%M:%f000', 'now',
    :lease) AS strftime_1, strftime('%Y-%m-%d %H:%M:%f000', 'now') AS strftime_2, strftime('%Y-%m-%d
    %H:%M:%f000', 'now', :retention) AS strftime_3
WHERE NOT (EXISTS (SELECT *
        FROM outboxkit_idempotency
        WHERE outboxkit_idempotency.scope = :at_scope AND outboxkit_idempotency.principal =
            :at_principal AND outboxkit_idempotency."key" = :at_key AND
            outboxkit_idempotency.expires_at > strftime('%Y-%m-%d %H:%M:%f000', 'now') AND
            (outboxkit_idempotency.state = 'done' OR outboxkit_idempotency.locked_until IS NULL OR
            outboxkit_idempotency.locked_until > strftime('%Y-%m-%d %H:%M:%f000', 'now') OR
            outboxkit_idempotency.fingerprint != :asked)))
ON CONFLICT (scope, principal, "key") DO UPDATE
SET fingerprint = excluded.fingerprint, state = excluded.state, token = excluded.token, steps = CASE
    WHEN (outboxkit_idempotency.expires_at <= strftime('%Y-%m-%d %H:%M:%f000', 'now')) THEN NULL
    ELSE outboxkit_idempotency.steps END, response_status = NULL, response_headers = NULL,
    response_body = NULL, locked_until = excluded.locked_until, created_at = CASE WHEN
    (outboxkit_idempotency.expires_at <= strftime('%Y-%m-%d %H:%M:%f000', 'now')) THEN
    excluded.created_at ELSE outboxkit_idempotency.created_at END, expires_at = excluded.expires_at
WHERE outboxkit_idempotency.expires_at <= strftime('%Y-%m-%d %H:%M:%f000', 'now') OR
    outboxkit_idempotency.state = 'processing' AND outboxkit_idempotency.locked_until <=
    strftime('%Y-%m-%d %H:%M:%f000', 'now') AND outboxkit_idempotency.fingerprint =
    excluded.fingerprint
RETURNING expires_at, steps;
