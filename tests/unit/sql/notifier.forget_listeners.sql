DELETE FROM outboxkit_listener
WHERE outboxkit_listener.until < statement_timestamp();
