WITH ours AS (SELECT root AS oid
    FROM (VALUES (to_regclass('outboxkit_outbox')), (to_regclass('outboxkit_inbox')),
        (to_regclass('outboxkit_dead_letter')), (to_regclass('outboxkit_published')),
        (to_regclass('outboxkit_idempotency')), (to_regclass('outboxkit_effect')),
        (to_regclass('outboxkit_attempt'))) AS roots (root) UNION ALL SELECT inhrelid
    FROM pg_inherits JOIN (VALUES (to_regclass('outboxkit_outbox')),
        (to_regclass('outboxkit_inbox')), (to_regclass('outboxkit_dead_letter')),
        (to_regclass('outboxkit_published')), (to_regclass('outboxkit_idempotency')),
        (to_regclass('outboxkit_effect')), (to_regclass('outboxkit_attempt'))) AS roots (root) ON
        inhparent = root) SELECT CAST(indexrelid AS regclass)::text AS name, CAST(indrelid AS
        regclass)::text AS table
FROM ours JOIN pg_index ON indrelid = ours.oid
WHERE NOT indisvalid OR NOT indisready
ORDER BY 1;
