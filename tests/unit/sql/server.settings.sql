SELECT name, setting, source
FROM pg_settings
WHERE name IN ('autovacuum', 'fsync', 'full_page_writes', 'synchronous_commit', 'track_counts');
