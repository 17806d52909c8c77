SELECT sample.type, sample.destination, CASE WHEN (sample.due_at IS NULL) THEN 'ready' WHEN
    (sample.due_at = :parked_until) THEN 'parked' WHEN sample.held THEN 'held' ELSE 'delayed' END AS
    state, count(*) FILTER (WHERE sample.attempts > 0) AS failed, count(*) AS rows
FROM (SELECT outboxkit_outbox.position AS position, outboxkit_outbox.message_id AS message_id,
    outboxkit_outbox.type AS type, outboxkit_outbox.topic AS topic, outboxkit_outbox."key" AS "key",
    outboxkit_outbox.payload AS payload, outboxkit_outbox.headers AS headers,
    outboxkit_outbox.correlation_id AS correlation_id, outboxkit_outbox.causation_id AS
    causation_id, outboxkit_outbox.content_type AS content_type, outboxkit_outbox.content_encoding
    AS content_encoding, outboxkit_outbox.created_at AS created_at, outboxkit_outbox.due_at AS
    due_at, outboxkit_outbox.attempts AS attempts, outboxkit_outbox.last_error AS last_error,
    outboxkit_outbox.held AS held, outboxkit_outbox.first_failed_at AS first_failed_at,
    outboxkit_outbox.expires_at AS expires_at, outboxkit_outbox.discard_unroutable AS
    discard_unroutable, outboxkit_outbox.dedup AS dedup, outboxkit_outbox.destination AS
    destination, outboxkit_outbox.reply AS reply
    FROM outboxkit_outbox
    ORDER BY rowid
    LIMIT :limit OFFSET :param_1) AS sample
GROUP BY sample.type, sample.destination, state;
