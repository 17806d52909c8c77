SELECT min(outboxkit_outbox.position) AS min_1
FROM outboxkit_outbox
WHERE outboxkit_outbox.due_at IS NULL AND outboxkit_outbox.position > :floor;
