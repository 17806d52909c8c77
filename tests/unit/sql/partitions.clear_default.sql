DELETE FROM "messages"."outboxkit_inbox_default"
WHERE message_id >= '019ca6b1-dc00' AND message_id < '019cabd8-3800';
