WITH RECURSIVE queues(value, number) AS
(SELECT (SELECT min(outboxkit_attempt.queue) AS min_1
        FROM outboxkit_attempt) AS value, 1 AS number UNION ALL SELECT (SELECT
            min(outboxkit_attempt.queue) AS min_2
        FROM outboxkit_attempt
        WHERE outboxkit_attempt.queue > queues.value) AS anon_1, queues.number + 1 AS anon_2
    FROM queues
    WHERE queues.value IS NOT NULL AND queues.number < :most)
SELECT queues.value
FROM queues
WHERE queues.value IS NOT NULL;
