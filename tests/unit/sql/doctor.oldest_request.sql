SELECT min(outboxkit_idempotency.expires_at) AS min_1
FROM outboxkit_idempotency;
