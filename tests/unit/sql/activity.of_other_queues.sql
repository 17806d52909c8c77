SELECT outboxkit_handler.queue, outboxkit_handler.handler
FROM outboxkit_handler
WHERE outboxkit_handler.handler IN (:handler_1, …) AND outboxkit_handler.queue != :queue AND
    outboxkit_handler.last_seen >= :last_seen_1
ORDER BY outboxkit_handler.queue, outboxkit_handler.handler;
