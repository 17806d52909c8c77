SELECT (SELECT count(*) AS count_1
    FROM outboxkit_outbox
    WHERE outboxkit_outbox.destination = :destination AND outboxkit_outbox.due_at IS NULL) + (SELECT count(*) AS count_2
    FROM outboxkit_outbox
    WHERE outboxkit_outbox.destination = :destination AND outboxkit_outbox.due_at <= :due_at_1) AS anon_1;
