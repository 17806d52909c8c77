SELECT count(*) AS count_1, min(first.due_at) AS min_1
FROM (SELECT outboxkit_outbox.due_at AS due_at, outboxkit_outbox.position AS position
    FROM outboxkit_outbox
    WHERE outboxkit_outbox.destination = :destination AND outboxkit_outbox.due_at <= :now
    ORDER BY outboxkit_outbox.due_at, outboxkit_outbox.position
    LIMIT :limit) AS first;
