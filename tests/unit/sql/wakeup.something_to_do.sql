SELECT (SELECT min(outboxkit_outbox.position) AS min_1
    FROM outboxkit_outbox
    WHERE outboxkit_outbox.due_at IS NULL AND outboxkit_outbox.position > :floor) AS position,
        (SELECT min(outboxkit_outbox.due_at) AS min_2
    FROM outboxkit_outbox
    WHERE outboxkit_outbox.due_at IS NOT NULL) AS due_at;
