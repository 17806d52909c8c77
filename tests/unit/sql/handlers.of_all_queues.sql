SELECT outboxkit_handler.queue, max(outboxkit_handler.last_seen) AS last_seen
FROM outboxkit_handler
GROUP BY outboxkit_handler.queue
ORDER BY outboxkit_handler.queue;
