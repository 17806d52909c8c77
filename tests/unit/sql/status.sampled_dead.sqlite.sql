SELECT sample.side, sample.reason, sample.resolution, count(*) AS rows
FROM (SELECT outboxkit_dead_letter.id AS id, outboxkit_dead_letter.side AS side,
    outboxkit_dead_letter.queue AS queue, outboxkit_dead_letter.handler AS handler,
    outboxkit_dead_letter.message_id AS message_id, outboxkit_dead_letter.type AS type,
    outboxkit_dead_letter.topic AS topic, outboxkit_dead_letter."key" AS "key",
    outboxkit_dead_letter.payload AS payload, outboxkit_dead_letter.headers AS headers,
    outboxkit_dead_letter.correlation_id AS correlation_id, outboxkit_dead_letter.causation_id AS
    causation_id, outboxkit_dead_letter.content_type AS content_type,
    outboxkit_dead_letter.content_encoding AS content_encoding, outboxkit_dead_letter.created_at AS
    created_at, outboxkit_dead_letter.reason AS reason, outboxkit_dead_letter.error AS error,
    outboxkit_dead_letter.attempts AS attempts, outboxkit_dead_letter.dead_at AS dead_at,
    outboxkit_dead_letter.position AS position, outboxkit_dead_letter.parked AS parked,
    outboxkit_dead_letter.first_failed_at AS first_failed_at,
    outboxkit_dead_letter.discard_unroutable AS discard_unroutable, outboxkit_dead_letter.resolution
    AS resolution, outboxkit_dead_letter.resolved_at AS resolved_at,
    outboxkit_dead_letter.resolved_by AS resolved_by, outboxkit_dead_letter.destination AS
    destination, outboxkit_dead_letter.reply AS reply, outboxkit_dead_letter.traceback AS traceback
    FROM outboxkit_dead_letter
    ORDER BY rowid
    LIMIT :limit OFFSET :param_1) AS sample
GROUP BY sample.side, sample.reason, sample.resolution
ORDER BY sample.side, sample.reason, sample.resolution;
