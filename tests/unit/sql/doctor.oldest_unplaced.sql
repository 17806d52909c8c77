SELECT min(outboxkit_inbox_default.processed_at) AS min_1
FROM outboxkit_inbox_default;
