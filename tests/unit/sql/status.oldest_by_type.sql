SELECT first.type, first.destination, CASE WHEN (first.due_at IS NULL) THEN 'ready' WHEN
    (first.due_at = :parked_until) THEN 'parked' WHEN first.held THEN 'held' ELSE 'delayed' END AS
    state, count(*) FILTER (WHERE first.attempts > 0) AS failed, count(*) AS rows
FROM (SELECT outboxkit_outbox.type AS type, outboxkit_outbox.destination AS destination,
    outboxkit_outbox.due_at AS due_at, outboxkit_outbox.held AS held, outboxkit_outbox.attempts AS
    attempts
    FROM outboxkit_outbox
    ORDER BY outboxkit_outbox.position
    LIMIT :limit) AS first
GROUP BY first.type, first.destination, state;
