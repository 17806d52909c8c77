ALTER TABLE "messages"."outboxkit_published" ATTACH PARTITION
    "messages"."outboxkit_published_20260301" FOR
VALUES
FROM ('2026-03-01 UTC') TO ('2026-03-02 UTC');
