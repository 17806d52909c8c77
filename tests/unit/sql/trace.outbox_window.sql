SELECT rows_read.message_id, rows_read.type, rows_read.key, rows_read.headers, rows_read.correlation_id,
    rows_read.causation_id, rows_read.created_at, rows_read.queue, rows_read.destination, rows_read.position,
    rows_read.due_at, rows_read.held, rows_read.attempts, rows_read.last_error, rows_read.first_failed_at,
    rows_read.expires_at, rows_read.number, substr(md5(rows_read.payload), 1, 12) AS digest, rows_read.message_id =
    :message_id OR rows_read.causation_id = :causation_id OR rows_read.correlation_id = :correlation_id OR rows_read.key
    = :key AS is_match
FROM (SELECT outboxkit_outbox.message_id AS message_id, outboxkit_outbox.type AS type, outboxkit_outbox.key AS key,
    outboxkit_outbox.headers AS headers, outboxkit_outbox.correlation_id AS correlation_id,
    outboxkit_outbox.causation_id AS causation_id, CASE WHEN (outboxkit_outbox.created_at < :param_1) THEN :param_1 WHEN
    (outboxkit_outbox.created_at > :param_2) THEN :param_2 ELSE outboxkit_outbox.created_at END AS created_at,
    outboxkit_outbox.queue AS queue, outboxkit_outbox.destination AS destination, outboxkit_outbox.position AS position,
    CASE WHEN (outboxkit_outbox.due_at < :param_3) THEN :param_3 WHEN (outboxkit_outbox.due_at > :param_4) THEN :param_4
    ELSE outboxkit_outbox.due_at END AS due_at, outboxkit_outbox.held AS held, outboxkit_outbox.attempts AS attempts,
    outboxkit_outbox.last_error AS last_error, CASE WHEN (outboxkit_outbox.first_failed_at < :param_5) THEN :param_5
    WHEN (outboxkit_outbox.first_failed_at > :param_6) THEN :param_6 ELSE outboxkit_outbox.first_failed_at END AS
    first_failed_at, CASE WHEN (outboxkit_outbox.expires_at < :param_7) THEN :param_7 WHEN (outboxkit_outbox.expires_at
    > :param_8) THEN :param_8 ELSE outboxkit_outbox.expires_at END AS expires_at, outboxkit_outbox.payload AS payload,
    row_number() OVER (ORDER BY outboxkit_outbox.position) AS number
    FROM outboxkit_outbox
    WHERE outboxkit_outbox.position >= :position
    ORDER BY outboxkit_outbox.position
    LIMIT :window) AS rows_read
WHERE rows_read.message_id = :message_id OR rows_read.causation_id = :causation_id OR rows_read.correlation_id =
    :correlation_id OR rows_read.key = :key OR rows_read.number = :window
LIMIT :limit;
