SELECT rows_read.destination, rows_read.due_at, rows_read.position, rows_read.message_id, rows_read.type, rows_read.key,
    rows_read.queue, rows_read.correlation_id, rows_read.created_at, rows_read.attempts, rows_read.state,
    rows_read.last_error, rows_read.number, rows_read.type = :type_1 AND rows_read.state = :state_1 AND
    substr(rows_read.message_id, :substr_1, :substr_2) = :substr_3 AND rows_read.created_at >= :created_at_1 AS is_match
FROM (SELECT outboxkit_outbox.destination AS destination, outboxkit_outbox.due_at AS due_at, outboxkit_outbox.position
    AS position, outboxkit_outbox.message_id AS message_id, outboxkit_outbox.type AS type, outboxkit_outbox.key AS key,
    outboxkit_outbox.queue AS queue, outboxkit_outbox.correlation_id AS correlation_id, CASE WHEN
    (outboxkit_outbox.created_at < :param_1) THEN :param_1 WHEN (outboxkit_outbox.created_at > :param_2) THEN :param_2
    ELSE outboxkit_outbox.created_at END AS created_at, outboxkit_outbox.attempts AS attempts, CASE WHEN
    (outboxkit_outbox.due_at IS NULL) THEN 'ready' WHEN (outboxkit_outbox.due_at >= :param_3) THEN 'parked' WHEN
    outboxkit_outbox.held THEN 'held' ELSE 'delayed' END AS state, substr(outboxkit_outbox.last_error, :substr_4,
    :substr_5) AS last_error, row_number() OVER (ORDER BY outboxkit_outbox.destination, outboxkit_outbox.due_at,
    outboxkit_outbox.position) AS number
    FROM outboxkit_outbox
    WHERE outboxkit_outbox.due_at IS NOT NULL AND (outboxkit_outbox.destination, outboxkit_outbox.due_at,
        outboxkit_outbox.position) > (:param_4, :param_5, :param_6)
    ORDER BY outboxkit_outbox.destination, outboxkit_outbox.due_at, outboxkit_outbox.position
    LIMIT :window) AS rows_read
WHERE rows_read.type = :type_1 AND rows_read.state = :state_1 AND substr(rows_read.message_id, :substr_1, :substr_2) =
    :substr_3 AND rows_read.created_at >= :created_at_1 OR rows_read.number = :window
ORDER BY rows_read.number
LIMIT :limit;
