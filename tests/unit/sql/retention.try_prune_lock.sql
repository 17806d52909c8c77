SELECT pg_try_advisory_lock(hashtextextended('outboxkit:prune:' || to_regclass('outboxkit_inbox')::oid::text, 0)) AS
    pg_try_advisory_lock_1;
