DELETE FROM outboxkit_inbox_default
WHERE ctid = ANY (array((SELECT ctid
            FROM outboxkit_inbox_default
            WHERE outboxkit_inbox_default.processed_at < :processed_at_1
            ORDER BY outboxkit_inbox_default.processed_at
            LIMIT :param_1)));
