SELECT set_config('outboxkit.doctor', :value, false) AS value, pg_backend_pid() AS pid;
