SELECT EXISTS (SELECT 1
    FROM messages.outboxkit_inbox_20260301
    WHERE messages.outboxkit_inbox_20260301.processed_at >= :before) AS anon_1;
