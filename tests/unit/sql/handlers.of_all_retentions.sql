SELECT outboxkit_handler.queue, max(outboxkit_handler.retention) AS retention
FROM outboxkit_handler
WHERE outboxkit_handler.last_seen >= :last_seen_1 AND outboxkit_handler.retention IS NOT NULL
GROUP BY outboxkit_handler.queue
ORDER BY outboxkit_handler.queue;
