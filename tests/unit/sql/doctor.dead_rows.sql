WITH ours AS (SELECT root AS oid
    FROM (VALUES (to_regclass('outboxkit_outbox')), (to_regclass('outboxkit_inbox')),
        (to_regclass('outboxkit_dead_letter')), (to_regclass('outboxkit_published')),
        (to_regclass('outboxkit_idempotency')), (to_regclass('outboxkit_effect')), (to_regclass('outboxkit_attempt')))
        AS roots (root) UNION ALL SELECT inhrelid
    FROM pg_inherits JOIN (VALUES (to_regclass('outboxkit_outbox')), (to_regclass('outboxkit_inbox')),
        (to_regclass('outboxkit_dead_letter')), (to_regclass('outboxkit_published')),
        (to_regclass('outboxkit_idempotency')), (to_regclass('outboxkit_effect')), (to_regclass('outboxkit_attempt')))
        AS roots (root) ON inhparent = root) SELECT CAST(relid AS regclass)::text AS name, n_dead_tup AS dead,
        n_live_tup AS live, greatest(last_vacuum, last_autovacuum) AS last_vacuum, coalesce('autovacuum_enabled=false' =
        ANY (reloptions) OR 'autovacuum_enabled=off' = ANY (reloptions), false) AS is_left_alone, relpersistence = 'u'
        AS is_unlogged
FROM ours JOIN pg_stat_user_tables ON relid = ours.oid JOIN pg_class ON pg_class.oid = relid
ORDER BY n_dead_tup DESC, relid;
