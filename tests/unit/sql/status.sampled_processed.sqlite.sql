SELECT sample.handler, count(*) AS rows
FROM (SELECT outboxkit_inbox.handler AS handler, outboxkit_inbox.message_id AS message_id,
    outboxkit_inbox.type AS type, outboxkit_inbox.processed_at AS processed_at,
    outboxkit_inbox.attempts AS attempts, outboxkit_inbox.duration_ms AS duration_ms
    FROM outboxkit_inbox
    ORDER BY rowid
    LIMIT :limit OFFSET :param_1) AS sample
GROUP BY sample.handler
ORDER BY sample.handler;
