SELECT page.message_id, page.type, page."key", page.headers, page.correlation_id, page.causation_id,
    page.created_at, page.queue, page.destination, page.published_at, page.position, page.number,
    page.message_id IN (:ids, …) OR page.causation_id IN (:ids, …) OR page.correlation_id IN
    (:stories, …) OR page."key" = :key AS is_match
FROM (SELECT outboxkit_published.message_id AS message_id, outboxkit_published.type AS type,
    outboxkit_published."key" AS "key", outboxkit_published.headers AS headers,
    outboxkit_published.correlation_id AS correlation_id, outboxkit_published.causation_id AS
    causation_id, CASE WHEN (outboxkit_published.created_at < :param_1) THEN :param_1 WHEN
    (outboxkit_published.created_at > :param_2) THEN :param_2 ELSE outboxkit_published.created_at
    END AS created_at, outboxkit_published.queue AS queue, outboxkit_published.destination AS
    destination, CASE WHEN (outboxkit_published.published_at < :param_3) THEN :param_3 WHEN
    (outboxkit_published.published_at > :param_4) THEN :param_4 ELSE
    outboxkit_published.published_at END AS published_at, outboxkit_published.position AS position,
    row_number() OVER (ORDER BY outboxkit_published.published_at DESC, outboxkit_published.position
    DESC) AS number
    FROM outboxkit_published
    WHERE outboxkit_published.published_at <= :after_at AND (outboxkit_published.published_at,
        outboxkit_published.position) < (:after_at, :after_position)
    ORDER BY outboxkit_published.published_at DESC, outboxkit_published.position DESC
    LIMIT :page OFFSET :param_5) AS page
WHERE page.message_id IN (:ids, …) OR page.causation_id IN (:ids, …) OR page.correlation_id IN
    (:stories, …) OR page."key" = :key OR page.number = :page
LIMIT :most OFFSET :param_6;
