DROP TABLE "messages"."outboxkit_published_20260301";
