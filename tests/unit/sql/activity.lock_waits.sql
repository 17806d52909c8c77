WITH RECURSIVE waiting (pid) AS (
    SELECT pid
    FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE 'outboxkit %' AND wait_event_type = 'Lock'
    AND pid <> pg_backend_pid()
    UNION
    SELECT unnest(pg_blocking_pids(pid))
    FROM waiting
    )
SELECT waiting.pid, pg_blocking_pids(waiting.pid) AS blockers, activity.pid AS backend, application_name AS name,
CAST(usename AS text) AS role, host(client_addr) AS address, state, query_start, xact_start AS since
FROM waiting LEFT JOIN pg_stat_activity AS activity ON activity.pid = waiting.pid
ORDER BY waiting.pid;
