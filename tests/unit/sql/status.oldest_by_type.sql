SELECT first.type, count(*) FILTER (WHERE first.attempts > 0) AS failed, count(*) AS rows
FROM (SELECT outboxkit_outbox.type AS type, outboxkit_outbox.attempts AS attempts
    FROM outboxkit_outbox
    ORDER BY outboxkit_outbox.position
    LIMIT :limit) AS first
GROUP BY first.type;
