SELECT count(*) AS count_1
FROM (SELECT outboxkit_idempotency.scope AS scope, outboxkit_idempotency.principal AS principal,
    outboxkit_idempotency."key" AS "key"
    FROM outboxkit_idempotency
    ORDER BY outboxkit_idempotency.scope, outboxkit_idempotency.principal,
        outboxkit_idempotency."key"
    LIMIT :limit OFFSET :param_1) AS first;
