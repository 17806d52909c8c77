SELECT first.key, count(*) AS rows
FROM (SELECT outboxkit_outbox.key AS key, outboxkit_outbox.held AS held
    FROM outboxkit_outbox
    WHERE outboxkit_outbox.destination = :destination AND outboxkit_outbox.due_at < :param_1
    ORDER BY outboxkit_outbox.due_at, outboxkit_outbox.position
    LIMIT :limit) AS first
WHERE first.held AND first.key IS NOT NULL
GROUP BY first.key
ORDER BY rows DESC, first.key
LIMIT :top;
