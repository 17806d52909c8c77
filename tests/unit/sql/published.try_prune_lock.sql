SELECT pg_try_advisory_lock(hashtextextended('outboxkit:prune:' ||
    CAST(CAST(to_regclass('outboxkit_inbox') AS OID) AS VARCHAR), 0)) AS pg_try_advisory_lock_1;
