WITH RECURSIVE handlers(value, number) AS
(SELECT (SELECT min(outboxkit_inbox.handler) AS min_1
        FROM outboxkit_inbox) AS value, 1 AS number UNION ALL SELECT (SELECT
            min(outboxkit_inbox.handler) AS min_2
        FROM outboxkit_inbox
        WHERE outboxkit_inbox.handler > handlers.value) AS anon_1, handlers.number + 1 AS anon_2
    FROM handlers
    WHERE handlers.value IS NOT NULL AND handlers.number < :most)
SELECT handlers.value
FROM handlers
WHERE handlers.value IS NOT NULL;
