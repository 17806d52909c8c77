SELECT pg_is_in_recovery() AS is_standby, current_setting('transaction_read_only') = 'on' AS is_read_only, CASE WHEN
    pg_is_in_recovery() THEN now() - pg_last_xact_replay_timestamp() END AS replay_lag, CAST(current_user AS text) AS
    role, current_database() AS database;
