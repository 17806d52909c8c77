WITH RECURSIVE ready(destination, number) AS
(SELECT (SELECT min(outboxkit_outbox.destination) AS min_1
        FROM outboxkit_outbox
        WHERE outboxkit_outbox.due_at IS NULL) AS destination, 1 AS number UNION ALL SELECT (SELECT
            min(outboxkit_outbox.destination) AS min_2
        FROM outboxkit_outbox
        WHERE outboxkit_outbox.due_at IS NULL AND outboxkit_outbox.destination > ready.destination)
            AS anon_1, ready.number + 1 AS anon_2
    FROM ready
    WHERE ready.destination IS NOT NULL AND ready.number < :most),
due(destination, number) AS
(SELECT (SELECT min(outboxkit_outbox.destination) AS min_3
        FROM outboxkit_outbox
        WHERE outboxkit_outbox.due_at IS NOT NULL) AS destination, 1 AS number UNION ALL SELECT
            (SELECT min(outboxkit_outbox.destination) AS min_4
        FROM outboxkit_outbox
        WHERE outboxkit_outbox.due_at IS NOT NULL AND outboxkit_outbox.destination >
            due.destination) AS anon_3, due.number + 1 AS anon_4
    FROM due
    WHERE due.destination IS NOT NULL AND due.number < :most)
SELECT found.destination
FROM (SELECT ready.destination AS destination
    FROM ready
    WHERE ready.destination IS NOT NULL UNION SELECT due.destination AS destination
    FROM due
    WHERE due.destination IS NOT NULL UNION SELECT first.destination AS destination
    FROM (SELECT outboxkit_dead_letter.destination AS destination
        FROM outboxkit_dead_letter
        WHERE outboxkit_dead_letter.parked = 1
        ORDER BY outboxkit_dead_letter."key"
        LIMIT :limit OFFSET :param_1) AS first) AS found
ORDER BY found.destination;
