SELECT count(*) AS count_1
FROM (SELECT outboxkit_idempotency.expires_at AS expires_at
    FROM outboxkit_idempotency
    ORDER BY outboxkit_idempotency.expires_at
    LIMIT :limit OFFSET :param_1) AS first;
