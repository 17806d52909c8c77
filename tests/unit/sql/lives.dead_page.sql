SELECT page.message_id, page.type, page.key, page.headers, page.correlation_id, page.causation_id,
    page.created_at, page.queue, page.destination, page.id, page.side, page.handler, page.reason,
    page.error, page.attempts, page.dead_at, page.position, page.parked, page.first_failed_at,
    page.resolution, page.resolved_at, page.resolved_by, page.number, page.message_id = ANY
    (:ids::VARCHAR(255)[]) OR page.causation_id = ANY (:ids::VARCHAR(255)[]) OR page.correlation_id
    = ANY (:stories::VARCHAR(255)[]) OR page.key = :key AS is_match
FROM (SELECT outboxkit_dead_letter.message_id AS message_id, outboxkit_dead_letter.type AS type,
    outboxkit_dead_letter.key AS key, outboxkit_dead_letter.headers AS headers,
    outboxkit_dead_letter.correlation_id AS correlation_id, outboxkit_dead_letter.causation_id AS
    causation_id, CASE WHEN (outboxkit_dead_letter.created_at < :param_1) THEN :param_1 WHEN
    (outboxkit_dead_letter.created_at > :param_2) THEN :param_2 ELSE
    outboxkit_dead_letter.created_at END AS created_at, outboxkit_dead_letter.queue AS queue,
    outboxkit_dead_letter.destination AS destination, outboxkit_dead_letter.id AS id,
    outboxkit_dead_letter.side AS side, outboxkit_dead_letter.handler AS handler,
    outboxkit_dead_letter.reason AS reason, outboxkit_dead_letter.error AS error,
    outboxkit_dead_letter.attempts AS attempts, CASE WHEN (outboxkit_dead_letter.dead_at < :param_3)
    THEN :param_3 WHEN (outboxkit_dead_letter.dead_at > :param_4) THEN :param_4 ELSE
    outboxkit_dead_letter.dead_at END AS dead_at, outboxkit_dead_letter.position AS position,
    outboxkit_dead_letter.parked AS parked, CASE WHEN (outboxkit_dead_letter.first_failed_at <
    :param_5) THEN :param_5 WHEN (outboxkit_dead_letter.first_failed_at > :param_6) THEN :param_6
    ELSE outboxkit_dead_letter.first_failed_at END AS first_failed_at,
    outboxkit_dead_letter.resolution AS resolution, CASE WHEN (outboxkit_dead_letter.resolved_at <
    :param_7) THEN :param_7 WHEN (outboxkit_dead_letter.resolved_at > :param_8) THEN :param_8 ELSE
    outboxkit_dead_letter.resolved_at END AS resolved_at, outboxkit_dead_letter.resolved_by AS
    resolved_by, row_number() OVER (ORDER BY outboxkit_dead_letter.id DESC) AS number
    FROM outboxkit_dead_letter
    WHERE outboxkit_dead_letter.id < :after_id
    ORDER BY outboxkit_dead_letter.id DESC
    LIMIT :page) AS page
WHERE page.message_id = ANY (:ids::VARCHAR(255)[]) OR page.causation_id = ANY (:ids::VARCHAR(255)[])
    OR page.correlation_id = ANY (:stories::VARCHAR(255)[]) OR page.key = :key OR page.number =
    :page
LIMIT :most;
