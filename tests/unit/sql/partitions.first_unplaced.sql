SELECT min(outboxkit_inbox_default.message_id) AS min_1
FROM outboxkit_inbox_default
WHERE outboxkit_inbox_default.message_id >= :lowest AND outboxkit_inbox_default.message_id < :behind AND
    outboxkit_inbox_default.message_id ~ '^[0-9a-f]{8}-[0-9a-f]{4}-[78]';
