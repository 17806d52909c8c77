DELETE FROM outboxkit_inbox_default
WHERE (outboxkit_inbox_default.handler, outboxkit_inbox_default.message_id) IN (SELECT
    outboxkit_inbox_default.handler, outboxkit_inbox_default.message_id
    FROM outboxkit_inbox_default
    WHERE outboxkit_inbox_default.processed_at < :processed_at_1
    ORDER BY outboxkit_inbox_default.processed_at
    LIMIT :param_1);
