SELECT n_dead_tup AS dead_rows, greatest(last_vacuum, last_autovacuum) AS last_vacuum
FROM pg_stat_user_tables
WHERE relid = to_regclass('outboxkit_outbox');
