CREATE TABLE "messages"."outboxkit_published_20260301" (LIKE "messages"."outboxkit_published"
    INCLUDING ALL);
