SELECT outboxkit_handler.queue, outboxkit_handler.handler, outboxkit_handler.function,
    outboxkit_handler.types, outboxkit_handler.last_seen, outboxkit_handler.long_message_id,
    outboxkit_handler.long_since
FROM outboxkit_handler
ORDER BY outboxkit_handler.queue, outboxkit_handler.handler;
