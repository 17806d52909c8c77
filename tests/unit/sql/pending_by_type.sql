SELECT outboxkit_outbox.type, count(*) AS count_1, min(outboxkit_outbox.created_at) AS min_1,
    count(*) FILTER (WHERE outboxkit_outbox.attempts > :attempts_1) AS anon_1
FROM outboxkit_outbox
GROUP BY outboxkit_outbox.type
ORDER BY outboxkit_outbox.type;
