DELETE FROM outboxkit_worker
WHERE outboxkit_worker.seen_at < statement_timestamp() + :ago;
