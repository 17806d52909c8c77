ALTER TABLE "messages"."outboxkit_inbox" ATTACH PARTITION "messages"."outboxkit_inbox_20260301" FOR
VALUES
FROM ('019ca6b1-dc00') TO ('019cabd8-3800');
