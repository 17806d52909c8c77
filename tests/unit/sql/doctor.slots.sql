SELECT slot_name AS name, pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE
    pg_current_wal_lsn() END, restart_lsn) AS bytes
FROM pg_replication_slots
WHERE NOT active AND restart_lsn IS NOT NULL
ORDER BY slot_name;
