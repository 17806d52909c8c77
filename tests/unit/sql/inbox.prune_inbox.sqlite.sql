DELETE FROM outboxkit_inbox
WHERE (outboxkit_inbox.handler, outboxkit_inbox.message_id) IN (SELECT outboxkit_inbox.handler,
    outboxkit_inbox.message_id
    FROM outboxkit_inbox
    WHERE outboxkit_inbox.processed_at < :processed_at_1
    LIMIT :param_1 OFFSET :param_2);
