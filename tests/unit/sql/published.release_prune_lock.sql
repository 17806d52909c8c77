SELECT pg_advisory_unlock(hashtextextended('outboxkit:prune:' ||
    CAST(CAST(to_regclass('outboxkit_inbox') AS OID) AS VARCHAR), 0)) AS pg_advisory_unlock_1;
