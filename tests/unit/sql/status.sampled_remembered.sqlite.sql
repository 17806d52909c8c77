SELECT count(*) AS rows
FROM (SELECT outboxkit_idempotency.scope AS scope, outboxkit_idempotency.principal AS principal,
    outboxkit_idempotency."key" AS "key", outboxkit_idempotency.fingerprint AS fingerprint,
    outboxkit_idempotency.state AS state, outboxkit_idempotency.token AS token,
    outboxkit_idempotency.steps AS steps, outboxkit_idempotency.response_status AS response_status,
    outboxkit_idempotency.response_headers AS response_headers, outboxkit_idempotency.response_body
    AS response_body, outboxkit_idempotency.locked_until AS locked_until,
    outboxkit_idempotency.created_at AS created_at, outboxkit_idempotency.expires_at AS expires_at
    FROM outboxkit_idempotency
    ORDER BY rowid
    LIMIT :limit OFFSET :param_1) AS sample;
