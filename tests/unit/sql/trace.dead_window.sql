SELECT rows_read.message_id, rows_read.type, rows_read.key, rows_read.headers, rows_read.correlation_id,
    rows_read.causation_id, rows_read.created_at, rows_read.queue, rows_read.destination, rows_read.id, rows_read.side,
    rows_read.handler, rows_read.reason, rows_read.error, rows_read.attempts, rows_read.dead_at, rows_read.position,
    rows_read.parked, rows_read.first_failed_at, rows_read.resolution, rows_read.resolved_at, rows_read.resolved_by,
    rows_read.number, substr(md5(rows_read.payload), 1, 12) AS digest, rows_read.message_id = :message_id OR
    rows_read.causation_id = :causation_id OR rows_read.correlation_id = :correlation_id OR rows_read.key = :key AS
    is_match
FROM (SELECT outboxkit_dead_letter.message_id AS message_id, outboxkit_dead_letter.type AS type,
    outboxkit_dead_letter.key AS key, outboxkit_dead_letter.headers AS headers, outboxkit_dead_letter.correlation_id AS
    correlation_id, outboxkit_dead_letter.causation_id AS causation_id, CASE WHEN (outboxkit_dead_letter.created_at <
    :param_1) THEN :param_1 WHEN (outboxkit_dead_letter.created_at > :param_2) THEN :param_2 ELSE
    outboxkit_dead_letter.created_at END AS created_at, outboxkit_dead_letter.queue AS queue,
    outboxkit_dead_letter.destination AS destination, outboxkit_dead_letter.id AS id, outboxkit_dead_letter.side AS
    side, outboxkit_dead_letter.handler AS handler, outboxkit_dead_letter.reason AS reason, outboxkit_dead_letter.error
    AS error, outboxkit_dead_letter.attempts AS attempts, CASE WHEN (outboxkit_dead_letter.dead_at < :param_3) THEN
    :param_3 WHEN (outboxkit_dead_letter.dead_at > :param_4) THEN :param_4 ELSE outboxkit_dead_letter.dead_at END AS
    dead_at, outboxkit_dead_letter.position AS position, outboxkit_dead_letter.parked AS parked, CASE WHEN
    (outboxkit_dead_letter.first_failed_at < :param_5) THEN :param_5 WHEN (outboxkit_dead_letter.first_failed_at >
    :param_6) THEN :param_6 ELSE outboxkit_dead_letter.first_failed_at END AS first_failed_at,
    outboxkit_dead_letter.resolution AS resolution, CASE WHEN (outboxkit_dead_letter.resolved_at < :param_7) THEN
    :param_7 WHEN (outboxkit_dead_letter.resolved_at > :param_8) THEN :param_8 ELSE outboxkit_dead_letter.resolved_at
    END AS resolved_at, outboxkit_dead_letter.resolved_by AS resolved_by, outboxkit_dead_letter.payload AS payload,
    row_number() OVER (ORDER BY outboxkit_dead_letter.id DESC) AS number
    FROM outboxkit_dead_letter
    WHERE true
    ORDER BY outboxkit_dead_letter.id DESC
    LIMIT :window) AS rows_read
WHERE rows_read.message_id = :message_id OR rows_read.causation_id = :causation_id OR rows_read.correlation_id =
    :correlation_id OR rows_read.key = :key OR rows_read.number = :window
LIMIT :limit;
