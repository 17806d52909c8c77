SELECT CASE backend_type WHEN 'walsender' THEN 'standby' ELSE 'session' END AS kind, pid, application_name AS name,
state, xact_start AS since, query_start, greatest(age(backend_xmin), age(backend_xid)) AS behind,
CAST(usename AS text) AS role, host(client_addr) AS address
FROM pg_stat_activity
WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
AND (datname = current_database() OR datname IS NULL)
AND backend_type <> 'autovacuum worker'
AND pid <> pg_backend_pid()
AND pid NOT IN (SELECT pid
    FROM pg_stat_progress_vacuum)
UNION ALL
SELECT 'slot', active_pid, CAST(slot_name AS text), NULL, NULL, NULL, age(xmin), NULL, NULL
FROM pg_replication_slots
WHERE xmin IS NOT NULL
UNION ALL
SELECT 'prepared', NULL, gid, NULL, prepared, NULL, age(transaction), CAST(owner AS text), NULL
FROM pg_prepared_xacts
WHERE database = current_database()
ORDER BY behind DESC, since
LIMIT 10;
