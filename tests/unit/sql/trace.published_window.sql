SELECT rows_read.message_id, rows_read.type, rows_read.key, rows_read.headers, rows_read.correlation_id,
    rows_read.causation_id, rows_read.created_at, rows_read.queue, rows_read.destination, rows_read.published_at,
    rows_read.position, rows_read.number, substr(md5(rows_read.payload), 1, 12) AS digest, rows_read.message_id =
    :message_id OR rows_read.causation_id = :causation_id OR rows_read.correlation_id = :correlation_id OR rows_read.key
    = :key AS is_match
FROM (SELECT outboxkit_published.message_id AS message_id, outboxkit_published.type AS type, outboxkit_published.key AS
    key, outboxkit_published.headers AS headers, outboxkit_published.correlation_id AS correlation_id,
    outboxkit_published.causation_id AS causation_id, CASE WHEN (outboxkit_published.created_at < :param_1) THEN
    :param_1 WHEN (outboxkit_published.created_at > :param_2) THEN :param_2 ELSE outboxkit_published.created_at END AS
    created_at, outboxkit_published.queue AS queue, outboxkit_published.destination AS destination, CASE WHEN
    (outboxkit_published.published_at < :param_3) THEN :param_3 WHEN (outboxkit_published.published_at > :param_4) THEN
    :param_4 ELSE outboxkit_published.published_at END AS published_at, outboxkit_published.position AS position,
    outboxkit_published.payload AS payload, row_number() OVER (ORDER BY outboxkit_published.published_at DESC,
    outboxkit_published.position DESC) AS number
    FROM outboxkit_published
    WHERE outboxkit_published.published_at < :at
    ORDER BY outboxkit_published.published_at DESC, outboxkit_published.position DESC
    LIMIT :window) AS rows_read
WHERE rows_read.message_id = :message_id OR rows_read.causation_id = :causation_id OR rows_read.correlation_id =
    :correlation_id OR rows_read.key = :key OR rows_read.number = :window
LIMIT :limit;
