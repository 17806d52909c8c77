SELECT outboxkit_idempotency.scope, outboxkit_idempotency.principal, outboxkit_idempotency.key,
    outboxkit_idempotency.state, outboxkit_idempotency.response_status, CASE WHEN (outboxkit_idempotency.locked_until <
    :param_1) THEN :param_1 WHEN (outboxkit_idempotency.locked_until > :param_2) THEN :param_2 ELSE
    outboxkit_idempotency.locked_until END AS locked_until, CASE WHEN (outboxkit_idempotency.created_at < :param_3) THEN
    :param_3 WHEN (outboxkit_idempotency.created_at > :param_4) THEN :param_4 ELSE outboxkit_idempotency.created_at END
    AS created_at, CASE WHEN (outboxkit_idempotency.expires_at < :param_5) THEN :param_5 WHEN
    (outboxkit_idempotency.expires_at > :param_6) THEN :param_6 ELSE outboxkit_idempotency.expires_at END AS expires_at
FROM outboxkit_idempotency
WHERE outboxkit_idempotency.key = :of_key
ORDER BY outboxkit_idempotency.scope, outboxkit_idempotency.principal, outboxkit_idempotency.key
LIMIT :limit;
