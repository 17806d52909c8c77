SELECT page.message_id, page.type, page.key, page.headers, page.correlation_id, page.causation_id,
    page.created_at, page.queue, page.destination, page.position, page.due_at, page.held,
    page.attempts, page.last_error, page.first_failed_at, page.expires_at, page.number,
    page.message_id = ANY (:ids::VARCHAR(255)[]) OR page.causation_id = ANY (:ids::VARCHAR(255)[])
    OR page.correlation_id = ANY (:stories::VARCHAR(255)[]) OR page.key = :key AS is_match
FROM (SELECT outboxkit_outbox.message_id AS message_id, outboxkit_outbox.type AS type,
    outboxkit_outbox.key AS key, outboxkit_outbox.headers AS headers,
    outboxkit_outbox.correlation_id AS correlation_id, outboxkit_outbox.causation_id AS
    causation_id, CASE WHEN (outboxkit_outbox.created_at < :param_1) THEN :param_1 WHEN
    (outboxkit_outbox.created_at > :param_2) THEN :param_2 ELSE outboxkit_outbox.created_at END AS
    created_at, outboxkit_outbox.queue AS queue, outboxkit_outbox.destination AS destination,
    outboxkit_outbox.position AS position, CASE WHEN (outboxkit_outbox.due_at < :param_3) THEN
    :param_3 WHEN (outboxkit_outbox.due_at > :param_4) THEN :param_4 ELSE outboxkit_outbox.due_at
    END AS due_at, outboxkit_outbox.held AS held, outboxkit_outbox.attempts AS attempts,
    outboxkit_outbox.last_error AS last_error, CASE WHEN (outboxkit_outbox.first_failed_at <
    :param_5) THEN :param_5 WHEN (outboxkit_outbox.first_failed_at > :param_6) THEN :param_6 ELSE
    outboxkit_outbox.first_failed_at END AS first_failed_at, CASE WHEN (outboxkit_outbox.expires_at
    < :param_7) THEN :param_7 WHEN (outboxkit_outbox.expires_at > :param_8) THEN :param_8 ELSE
    outboxkit_outbox.expires_at END AS expires_at, row_number() OVER (ORDER BY
    outboxkit_outbox.position DESC) AS number
    FROM outboxkit_outbox
    WHERE outboxkit_outbox.position < :after_position
    ORDER BY outboxkit_outbox.position DESC
    LIMIT :page) AS page
WHERE page.message_id = ANY (:ids::VARCHAR(255)[]) OR page.causation_id = ANY (:ids::VARCHAR(255)[])
    OR page.correlation_id = ANY (:stories::VARCHAR(255)[]) OR page.key = :key OR page.number =
    :page
LIMIT :most;
