DELETE FROM outboxkit_idempotency
WHERE ctid = ANY (array((SELECT ctid
            FROM outboxkit_idempotency
            WHERE outboxkit_idempotency.expires_at < :expires_at_1 AND (outboxkit_idempotency.locked_until IS NULL OR
                outboxkit_idempotency.locked_until < :locked_until_1)
            ORDER BY outboxkit_idempotency.expires_at
            LIMIT :param_1
            FOR UPDATE SKIP LOCKED)));
