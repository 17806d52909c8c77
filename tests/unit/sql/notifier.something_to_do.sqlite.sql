SELECT (SELECT min(first.position) AS min_1
    FROM (SELECT outboxkit_outbox.position AS position
        FROM outboxkit_outbox
        WHERE outboxkit_outbox.due_at IS NULL AND (outboxkit_outbox.destination,
            outboxkit_outbox.position) > (:destination, :floor) AND outboxkit_outbox.destination <=
            :destination
        ORDER BY outboxkit_outbox.destination, outboxkit_outbox.position
        LIMIT 1 OFFSET :param_1) AS first) AS position, (SELECT min(outboxkit_outbox.due_at) AS
            min_2
    FROM outboxkit_outbox
    WHERE outboxkit_outbox.destination = :destination AND outboxkit_outbox.due_at IS NOT NULL) AS
        due_at;
