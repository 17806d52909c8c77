WITH ours AS (SELECT root AS oid
    FROM (VALUES (to_regclass('outboxkit_outbox')), (to_regclass('outboxkit_inbox')),
        (to_regclass('outboxkit_dead_letter')), (to_regclass('outboxkit_published')),
        (to_regclass('outboxkit_idempotency')), (to_regclass('outboxkit_effect')), (to_regclass('outboxkit_attempt')))
        AS roots (root) UNION ALL SELECT inhrelid
    FROM pg_inherits JOIN (VALUES (to_regclass('outboxkit_outbox')), (to_regclass('outboxkit_inbox')),
        (to_regclass('outboxkit_dead_letter')), (to_regclass('outboxkit_published')),
        (to_regclass('outboxkit_idempotency')), (to_regclass('outboxkit_effect')), (to_regclass('outboxkit_attempt')))
        AS roots (root) ON inhparent = root) SELECT pid, CAST(relation AS regclass)::text AS name, mode,
        application_name, state, xact_start AS since, (SELECT count(*)
    FROM pg_locks AS other
    WHERE other.relation = pg_locks.relation AND NOT other.granted AND other.database = pg_locks.database) AS waiting
FROM pg_locks JOIN ours ON ours.oid = relation LEFT JOIN pg_stat_activity USING (pid)
WHERE granted AND pg_locks.database = (SELECT oid
    FROM pg_database
    WHERE datname = current_database()) AND mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
        'AccessExclusiveLock') AND pid <> pg_backend_pid()
ORDER BY xact_start, pid, name;
