SELECT first.last_error, count(*) OVER () AS anon_1
FROM (SELECT outboxkit_outbox.last_error AS last_error, outboxkit_outbox.due_at AS due_at,
    outboxkit_outbox.position AS position
    FROM outboxkit_outbox
    WHERE outboxkit_outbox.destination = :destination AND outboxkit_outbox.due_at < :parked_until
    ORDER BY outboxkit_outbox.due_at, outboxkit_outbox.position
    LIMIT :limit OFFSET :param_1) AS first
WHERE first.last_error IS NOT NULL
ORDER BY first.due_at DESC, first.position DESC
LIMIT 1 OFFSET :param_2;
