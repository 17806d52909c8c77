SELECT CASE WHEN (outboxkit_outbox.created_at < :param_1) THEN :param_1 WHEN (outboxkit_outbox.created_at > :param_2)
    THEN :param_2 ELSE outboxkit_outbox.created_at END AS created_at, outboxkit_outbox.due_at, outboxkit_outbox.held
FROM outboxkit_outbox
WHERE outboxkit_outbox.position >= :position
ORDER BY outboxkit_outbox.position
LIMIT 100;
