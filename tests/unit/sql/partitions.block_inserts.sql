LOCK TABLE "messages"."outboxkit_inbox" IN ACCESS EXCLUSIVE MODE;
