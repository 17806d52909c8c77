DELETE FROM outboxkit_handler
WHERE outboxkit_handler.last_seen < :last_seen_1;
