SELECT count(*) AS count_1
FROM (SELECT outboxkit_outbox.position AS position
    FROM outboxkit_outbox
    WHERE outboxkit_outbox.destination BETWEEN :destination AND :destination AND outboxkit_outbox.due_at IS NULL AND
        outboxkit_outbox.position < :position
    ORDER BY outboxkit_outbox.destination, outboxkit_outbox.position
    LIMIT :limit) AS ahead;
