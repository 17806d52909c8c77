ALTER TABLE "messages"."outboxkit_inbox_20260301" OWNER TO "shop_owner";
