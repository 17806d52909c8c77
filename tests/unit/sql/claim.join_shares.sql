SELECT CAST(pg_locks.objid AS BIGINT) AS objid, pg_locks.virtualtransaction
FROM (SELECT hashtext('outboxkit ' || 'outboxkit_outbox'::regclass::oid || :destination) & 2147483647 AS relays,
    pg_try_advisory_xact_lock_shared(CAST(hashtext('outboxkit ' || 'outboxkit_outbox'::regclass::oid || :destination) &
    2147483647 AS INTEGER), :number) AS is_in
    LIMIT ALL OFFSET 0) AS joined LEFT OUTER JOIN pg_locks ON joined.is_in IS NOT false AND pg_locks.locktype =
        'advisory' AND pg_locks.database = (SELECT pg_database.oid
    FROM pg_database
    WHERE pg_database.datname = current_database()) AND CAST(pg_locks.classid AS BIGINT) = joined.relays AND
        pg_locks.objsubid = 2;
