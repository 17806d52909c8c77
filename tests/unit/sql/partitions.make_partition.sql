CREATE TABLE "messages"."outboxkit_inbox_20260301" (LIKE "messages"."outboxkit_inbox" INCLUDING ALL);
