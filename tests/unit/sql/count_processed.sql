SELECT outboxkit_inbox.handler, count(*) AS count_1
FROM outboxkit_inbox
GROUP BY outboxkit_inbox.handler
ORDER BY outboxkit_inbox.handler;
