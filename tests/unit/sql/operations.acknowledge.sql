SELECT pg_try_advisory_lock_shared(CAST(:pause AS integer), pid)
FROM unnest(CAST(:pids AS integer[])) AS pid;
