SELECT pg_locks.virtualtransaction
FROM pg_locks
WHERE pg_locks.locktype = 'relation' AND pg_locks.database = (SELECT pg_database.oid
    FROM pg_database
    WHERE pg_database.datname = current_database()) AND pg_locks.relation = to_regclass('outboxkit_outbox') AND
        pg_locks.mode = 'RowExclusiveLock' AND pg_locks.pid IS DISTINCT
FROM pg_backend_pid();
