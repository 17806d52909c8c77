WITH ours AS (SELECT oid, relname
    FROM pg_class
    WHERE oid IN (to_regclass('outboxkit_pause'), to_regclass('outboxkit_audit'), to_regclass('outboxkit_operation'),
        to_regclass('outboxkit_worker'), to_regclass('outboxkit_outbox'), to_regclass('outboxkit_inbox'),
        to_regclass('outboxkit_attempt'), to_regclass('outboxkit_handler'), to_regclass('outboxkit_dead_letter'),
        to_regclass('outboxkit_published'), to_regclass('outboxkit_listener'), to_regclass('outboxkit_idempotency'),
        to_regclass('outboxkit_effect'), to_regclass('outboxkit_sharding'), to_regclass('outboxkit_shard_member'),
        to_regclass('outboxkit_schema_version'), to_regclass('outboxkit_inbox_default'),
        to_regclass('outboxkit_published_default'))) SELECT 'table', relname, ''
FROM ours UNION ALL SELECT 'column', relname, attname
FROM ours JOIN pg_attribute ON attrelid = oid
WHERE attnum > 0 AND NOT attisdropped UNION ALL SELECT 'index', ours.relname, made.relname
FROM ours JOIN pg_index ON indrelid = ours.oid JOIN pg_class made ON made.oid = indexrelid UNION ALL SELECT 'partition',
    ours.relname, 'default'
FROM ours JOIN pg_partitioned_table ON partrelid = ours.oid
WHERE partdefid <> 0 UNION ALL SELECT 'trigger', relname, tgname
FROM ours JOIN pg_trigger ON tgrelid = ours.oid
WHERE NOT tgisinternal;
