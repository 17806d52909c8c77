SELECT pg_locks.virtualtransaction AS holder, pg_locks.objsubid AS subid, CAST(pg_locks.objid AS BIGINT) AS part
FROM pg_locks
WHERE pg_locks.locktype = 'advisory' AND pg_locks.granted AND pg_locks.database = (SELECT pg_database.oid
    FROM pg_database
    WHERE pg_database.datname = current_database()) AND (pg_locks.objsubid = 1 AND pg_locks.mode = 'ExclusiveLock' AND
        (CAST(pg_locks.classid AS BIGINT) << 32) | CAST(pg_locks.objid AS BIGINT) = :request_lock #
        'outboxkit_idempotency'::regclass::oid::bigint OR pg_locks.objsubid = 2 AND CAST(pg_locks.classid AS BIGINT) =
        :request_part);
