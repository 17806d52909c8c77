SELECT (SELECT outboxkit_outbox.due_at
    FROM outboxkit_outbox
    WHERE outboxkit_outbox.destination = :destination AND outboxkit_outbox.due_at < :parked_until
    ORDER BY outboxkit_outbox.destination DESC, outboxkit_outbox.due_at DESC
    LIMIT 1) AS anon_1;
