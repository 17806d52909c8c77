SELECT count(*) AS count_1, min(first.created_at) AS min_1
FROM (SELECT outboxkit_outbox.created_at AS created_at
    FROM outboxkit_outbox
    WHERE outboxkit_outbox.destination BETWEEN :destination AND :destination AND outboxkit_outbox.due_at IS NULL
    ORDER BY outboxkit_outbox.destination, outboxkit_outbox.position
    LIMIT :limit) AS first;
