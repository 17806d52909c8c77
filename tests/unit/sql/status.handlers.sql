WITH RECURSIVE handlers(value, number) AS
(SELECT (SELECT outboxkit_inbox.handler
        FROM outboxkit_inbox
        ORDER BY outboxkit_inbox.handler
        LIMIT 1) AS value, 1 AS number UNION ALL SELECT (SELECT outboxkit_inbox.handler
        FROM outboxkit_inbox
        WHERE outboxkit_inbox.handler > handlers.value
        ORDER BY outboxkit_inbox.handler
        LIMIT 1) AS anon_1, handlers.number + 1 AS anon_2
    FROM handlers
    WHERE handlers.value IS NOT NULL AND handlers.number < :most)
SELECT handlers.value
FROM handlers
WHERE handlers.value IS NOT NULL;
