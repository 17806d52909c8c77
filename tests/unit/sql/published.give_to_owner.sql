ALTER TABLE "messages"."outboxkit_published_20260301" OWNER TO "shop_owner";
