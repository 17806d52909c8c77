SELECT outboxkit_outbox.message_id, outboxkit_outbox.type, outboxkit_outbox.key, outboxkit_outbox.headers,
    outboxkit_outbox.correlation_id, outboxkit_outbox.causation_id, CASE WHEN (outboxkit_outbox.created_at < :param_1)
    THEN :param_1 WHEN (outboxkit_outbox.created_at > :param_2) THEN :param_2 ELSE outboxkit_outbox.created_at END AS
    created_at, outboxkit_outbox.queue, outboxkit_outbox.destination, outboxkit_outbox.position, CASE WHEN
    (outboxkit_outbox.due_at < :param_3) THEN :param_3 WHEN (outboxkit_outbox.due_at > :param_4) THEN :param_4 ELSE
    outboxkit_outbox.due_at END AS due_at, outboxkit_outbox.held, outboxkit_outbox.attempts,
    outboxkit_outbox.last_error, CASE WHEN (outboxkit_outbox.first_failed_at < :param_5) THEN :param_5 WHEN
    (outboxkit_outbox.first_failed_at > :param_6) THEN :param_6 ELSE outboxkit_outbox.first_failed_at END AS
    first_failed_at, CASE WHEN (outboxkit_outbox.expires_at < :param_7) THEN :param_7 WHEN (outboxkit_outbox.expires_at
    > :param_8) THEN :param_8 ELSE outboxkit_outbox.expires_at END AS expires_at, substr(md5(outboxkit_outbox.payload),
    1, 12) AS digest
FROM outboxkit_outbox
WHERE outboxkit_outbox.key = :key AND outboxkit_outbox.due_at IS NULL
ORDER BY outboxkit_outbox.destination, (outboxkit_outbox.position + 0)
LIMIT :limit;
