SELECT first.key, count(*) AS rows
FROM (SELECT coalesce(outboxkit_outbox.topic, outboxkit_outbox.type) AS key, outboxkit_outbox.destination AS
    destination, outboxkit_outbox.queue AS queue, outboxkit_outbox.discard_unroutable AS discard_unroutable
    FROM outboxkit_outbox
    ORDER BY outboxkit_outbox.position
    LIMIT :limit) AS first
WHERE first.destination = :destination AND first.queue IS NULL AND NOT first.discard_unroutable
GROUP BY first.key;
