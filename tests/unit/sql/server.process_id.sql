SELECT pg_backend_pid() AS pg_backend_pid_1;
