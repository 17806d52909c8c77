SELECT first."key", count(*) AS rows
FROM (SELECT coalesce(outboxkit_outbox.topic, outboxkit_outbox.type) AS "key",
    outboxkit_outbox.destination AS destination, outboxkit_outbox.queue AS queue,
    outboxkit_outbox.discard_unroutable AS discard_unroutable
    FROM outboxkit_outbox
    ORDER BY outboxkit_outbox.position
    LIMIT :limit OFFSET :param_1) AS first
WHERE first.destination = :destination AND first.queue IS NULL AND first.discard_unroutable = 0
GROUP BY first."key";
