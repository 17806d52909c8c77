WITH gone AS (DELETE FROM "messages"."outboxkit_published_default"
    WHERE published_at >= '2026-03-01 UTC' AND published_at < '2026-03-02 UTC'
    RETURNING "published_at", "position", "message_id", "type", "topic", "key", "payload",
        "headers", "correlation_id", "causation_id", "content_type", "content_encoding",
        "created_at") INSERT INTO "messages"."outboxkit_published_20260301" ("published_at",
        "position", "message_id", "type", "topic", "key", "payload", "headers", "correlation_id",
        "causation_id", "content_type", "content_encoding", "created_at") SELECT "published_at",
        "position", "message_id", "type", "topic", "key", "payload", "headers", "correlation_id",
        "causation_id", "content_type", "content_encoding", "created_at"
FROM gone;
