INSERT INTO "messages"."outboxkit_inbox_20260301" ("handler", "message_id", "type", "processed_at", "attempts",
    "payload_crc") SELECT "handler", "message_id", "type", "processed_at", "attempts", "payload_crc"
FROM "messages"."outboxkit_inbox_default"
WHERE message_id >= '019ca6b1-dc00' AND message_id < '019cabd8-3800'
ON CONFLICT DO NOTHING;
