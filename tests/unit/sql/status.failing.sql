SELECT first.type, count(*) AS rows, max(first.attempts) AS attempts, max(first.last_error) AS last_error
FROM (SELECT outboxkit_outbox.type AS type, outboxkit_outbox.attempts AS attempts, outboxkit_outbox.last_error AS
    last_error
    FROM outboxkit_outbox
    WHERE outboxkit_outbox.destination = :destination AND outboxkit_outbox.due_at < :parked_until
    ORDER BY outboxkit_outbox.due_at, outboxkit_outbox.position
    LIMIT :limit) AS first
WHERE first.last_error IS NOT NULL
GROUP BY first.type
ORDER BY first.type;
