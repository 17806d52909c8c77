SELECT outboxkit_handler.queue, outboxkit_handler.handler, outboxkit_handler.function, outboxkit_handler.types,
    outboxkit_handler.first_seen, outboxkit_handler.last_seen, outboxkit_handler.retention
FROM outboxkit_handler
ORDER BY outboxkit_handler.queue, outboxkit_handler.handler;
