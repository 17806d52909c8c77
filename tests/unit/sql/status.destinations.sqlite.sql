WITH RECURSIVE ready(value, number) AS
(SELECT (SELECT outboxkit_outbox.destination
        FROM outboxkit_outbox
        WHERE outboxkit_outbox.due_at IS NULL
        ORDER BY outboxkit_outbox.destination
        LIMIT 1 OFFSET :param_1) AS value, 1 AS number UNION ALL SELECT (SELECT
            outboxkit_outbox.destination
        FROM outboxkit_outbox
        WHERE outboxkit_outbox.due_at IS NULL AND outboxkit_outbox.destination > ready.value
        ORDER BY outboxkit_outbox.destination
        LIMIT 1 OFFSET :param_2) AS anon_1, ready.number + 1 AS anon_2
    FROM ready
    WHERE ready.value IS NOT NULL AND ready.number < :most),
due(value, number) AS
(SELECT (SELECT outboxkit_outbox.destination
        FROM outboxkit_outbox
        WHERE outboxkit_outbox.due_at IS NOT NULL
        ORDER BY outboxkit_outbox.destination
        LIMIT 1 OFFSET :param_3) AS value, 1 AS number UNION ALL SELECT (SELECT
            outboxkit_outbox.destination
        FROM outboxkit_outbox
        WHERE outboxkit_outbox.due_at IS NOT NULL AND outboxkit_outbox.destination > due.value
        ORDER BY outboxkit_outbox.destination
        LIMIT 1 OFFSET :param_4) AS anon_3, due.number + 1 AS anon_4
    FROM due
    WHERE due.value IS NOT NULL AND due.number < :most)
SELECT names.value
FROM (SELECT ready.value AS value
    FROM ready
    WHERE ready.value IS NOT NULL UNION SELECT due.value AS value
    FROM due
    WHERE due.value IS NOT NULL UNION SELECT first.destination AS destination
    FROM (SELECT outboxkit_dead_letter.destination AS destination
        FROM outboxkit_dead_letter
        WHERE outboxkit_dead_letter.parked = 1
        ORDER BY outboxkit_dead_letter."key"
        LIMIT :limit OFFSET :param_5) AS first) AS names
ORDER BY names.value;
