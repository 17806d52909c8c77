LOCK TABLE "messages"."outboxkit_inbox_default" IN ACCESS EXCLUSIVE MODE;
