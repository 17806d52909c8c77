TRUNCATE "messages"."outboxkit_inbox_20260301";
