SELECT name, setting, source, reset_val
FROM pg_settings
WHERE name IN ('autovacuum', 'default_transaction_isolation', 'fsync', 'full_page_writes',
    'max_connections', 'max_prepared_transactions', 'session_replication_role',
    'synchronous_commit', 'track_counts', 'TimeZone', 'idle_in_transaction_session_timeout');
