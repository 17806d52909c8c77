SELECT outboxkit_handler.queue, outboxkit_handler.handler, outboxkit_handler.function, outboxkit_handler.types,
    outboxkit_handler.first_seen, outboxkit_handler.last_seen, outboxkit_handler.retention
FROM outboxkit_handler
WHERE outboxkit_handler.last_seen >= :last_seen_1 AND outboxkit_handler.handler IN (SELECT outboxkit_handler.handler
    FROM outboxkit_handler
    WHERE outboxkit_handler.last_seen >= :last_seen_1
    GROUP BY outboxkit_handler.handler
    HAVING count(*) > 1)
ORDER BY outboxkit_handler.handler, outboxkit_handler.queue;
