SELECT pg_advisory_unlock(hashtextextended('outboxkit:prune:' || to_regclass('outboxkit_inbox')::oid::text, 0)) AS
    pg_advisory_unlock_1;
