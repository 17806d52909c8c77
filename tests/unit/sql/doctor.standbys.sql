SELECT application_name AS name, sync_state
FROM pg_stat_replication AS sender
WHERE state <> 'backup' AND NOT EXISTS (SELECT
    FROM pg_replication_slots
    WHERE active_pid = sender.pid AND slot_type = 'logical')
ORDER BY application_name;
