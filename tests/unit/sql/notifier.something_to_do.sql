SELECT (SELECT min(first.position) AS min_1
    FROM (SELECT outboxkit_outbox.position AS position
        FROM outboxkit_outbox
        WHERE outboxkit_outbox.due_at IS NULL AND (outboxkit_outbox.destination, outboxkit_outbox.position) >
            (:destination, :floor) AND outboxkit_outbox.destination <= :destination
        ORDER BY outboxkit_outbox.destination, outboxkit_outbox.position
        LIMIT 1) AS first) AS position, (SELECT outboxkit_outbox.due_at
    FROM outboxkit_outbox
    WHERE outboxkit_outbox.destination = :destination AND outboxkit_outbox.due_at IS NOT NULL
    ORDER BY outboxkit_outbox.due_at
    LIMIT 1) AS due_at;
