DELETE FROM outboxkit_inbox
WHERE rowid IN (SELECT rowid
    FROM outboxkit_inbox
    WHERE outboxkit_inbox.processed_at < :processed_at_1
    LIMIT :param_1 OFFSET :param_2);
