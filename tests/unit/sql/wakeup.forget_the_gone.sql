DELETE FROM outboxkit_sleeper
WHERE outboxkit_sleeper.until < statement_timestamp();
