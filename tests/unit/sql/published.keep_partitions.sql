SELECT pg_advisory_xact_lock_shared(:pg_advisory_xact_lock_shared_2) AS
    pg_advisory_xact_lock_shared_1;
