SELECT outboxkit_handler.queue, outboxkit_handler.handler, outboxkit_handler.function,
    outboxkit_handler.types, outboxkit_handler.last_seen
FROM outboxkit_handler
ORDER BY outboxkit_handler.queue, outboxkit_handler.handler;
