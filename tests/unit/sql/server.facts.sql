SELECT CAST(current_setting('server_version_num') AS integer) AS version,
    current_setting('server_version') AS version_name, clock_timestamp() AS now, pg_is_in_recovery()
    AS is_standby, current_setting('transaction_read_only') = 'on' AS is_read_only, CASE WHEN
    pg_is_in_recovery() THEN now() - pg_last_xact_replay_timestamp() END AS replay_lag,
    CAST(current_user AS text) AS role, current_database() AS database, host(inet_client_addr()) AS
    client, coalesce((SELECT ssl
        FROM pg_stat_ssl
        WHERE pid = pg_backend_pid()), false) AS is_encrypted;
