SELECT pid, application_name AS name, backend_start AS since, state, host(client_addr) AS address,
xact_start AS open_since
FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'outboxkit %' AND pid <> pg_backend_pid()
ORDER BY application_name, backend_start, pid;
