SELECT count(*) AS rows
FROM (SELECT outboxkit_published.published_at AS published_at, outboxkit_published.position AS
    position, outboxkit_published.message_id AS message_id, outboxkit_published.type AS type,
    outboxkit_published.topic AS topic, outboxkit_published."key" AS "key",
    outboxkit_published.payload AS payload, outboxkit_published.headers AS headers,
    outboxkit_published.correlation_id AS correlation_id, outboxkit_published.causation_id AS
    causation_id, outboxkit_published.content_type AS content_type,
    outboxkit_published.content_encoding AS content_encoding, outboxkit_published.created_at AS
    created_at, outboxkit_published.destination AS destination, outboxkit_published.reply AS reply
    FROM outboxkit_published
    ORDER BY rowid
    LIMIT :limit OFFSET :param_1) AS sample;
