LOCK TABLE "messages"."outboxkit_published" IN ACCESS EXCLUSIVE MODE;
