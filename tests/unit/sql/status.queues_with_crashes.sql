WITH RECURSIVE queues(value, number) AS
(SELECT (SELECT outboxkit_attempt.queue
        FROM outboxkit_attempt
        ORDER BY outboxkit_attempt.queue
        LIMIT 1) AS value, 1 AS number UNION ALL SELECT (SELECT outboxkit_attempt.queue
        FROM outboxkit_attempt
        WHERE outboxkit_attempt.queue > queues.value
        ORDER BY outboxkit_attempt.queue
        LIMIT 1) AS anon_1, queues.number + 1 AS anon_2
    FROM queues
    WHERE queues.value IS NOT NULL AND queues.number < :most)
SELECT queues.value
FROM queues
WHERE queues.value IS NOT NULL;
