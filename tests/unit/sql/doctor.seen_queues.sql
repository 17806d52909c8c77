SELECT outboxkit_handler.queue, outboxkit_handler.types
FROM outboxkit_handler
WHERE outboxkit_handler.last_seen >= :seen_since
ORDER BY outboxkit_handler.queue, outboxkit_handler.handler;
