SELECT DISTINCT outboxkit_handler.queue
FROM outboxkit_handler;
