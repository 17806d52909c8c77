SELECT min(outboxkit_inbox.processed_at) AS min_1
FROM outboxkit_inbox;
