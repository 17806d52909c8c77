SELECT newest.scope, newest.principal, newest.key, newest.state, newest.response_status, newest.locked_until,
    newest.created_at, newest.expires_at
FROM (SELECT outboxkit_idempotency.scope AS scope, outboxkit_idempotency.principal AS principal,
    outboxkit_idempotency.key AS key, outboxkit_idempotency.state AS state, outboxkit_idempotency.response_status AS
    response_status, CASE WHEN (outboxkit_idempotency.locked_until < :param_1) THEN :param_1 WHEN
    (outboxkit_idempotency.locked_until > :param_2) THEN :param_2 ELSE outboxkit_idempotency.locked_until END AS
    locked_until, CASE WHEN (outboxkit_idempotency.created_at < :param_3) THEN :param_3 WHEN
    (outboxkit_idempotency.created_at > :param_4) THEN :param_4 ELSE outboxkit_idempotency.created_at END AS created_at,
    CASE WHEN (outboxkit_idempotency.expires_at < :param_5) THEN :param_5 WHEN (outboxkit_idempotency.expires_at >
    :param_6) THEN :param_6 ELSE outboxkit_idempotency.expires_at END AS expires_at
    FROM outboxkit_idempotency
    ORDER BY outboxkit_idempotency.expires_at DESC
    LIMIT :window) AS newest
WHERE (:of_key IS NULL OR newest.key = :of_key) AND (:of_scope IS NULL OR newest.scope = :of_scope) AND (:of_state IS
    NULL OR newest.state = :of_state)
ORDER BY newest.expires_at DESC
LIMIT :limit;
