SELECT current_setting('outboxkit.doctor', true) AS value, pg_backend_pid() AS pid;
