SELECT outboxkit_outbox.message_id, outboxkit_outbox.position, CASE WHEN (outboxkit_outbox.due_at < :param_1) THEN
    :param_1 WHEN (outboxkit_outbox.due_at > :param_2) THEN :param_2 ELSE outboxkit_outbox.due_at END AS due_at,
    outboxkit_outbox.held, outboxkit_outbox.attempts, outboxkit_outbox.last_error
FROM outboxkit_outbox
WHERE outboxkit_outbox.key BETWEEN :key AND :key AND outboxkit_outbox.destination = :destination AND
    (outboxkit_outbox.position + 0) < :position AND outboxkit_outbox.due_at IS NULL
ORDER BY outboxkit_outbox.key, outboxkit_outbox.destination, (outboxkit_outbox.position + 0)
LIMIT 1;
