SELECT first.held, count(*) AS count_1, min(first.due_at) AS min_1, min(first.created_at) AS min_2
FROM (SELECT outboxkit_outbox.held AS held, outboxkit_outbox.due_at AS due_at, outboxkit_outbox.created_at AS created_at
    FROM outboxkit_outbox
    WHERE outboxkit_outbox.destination = :destination AND outboxkit_outbox.due_at < :parked_until
    ORDER BY outboxkit_outbox.due_at, outboxkit_outbox.position
    LIMIT :limit) AS first
GROUP BY first.held;
