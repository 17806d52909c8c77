SELECT 'table', name, ''
FROM sqlite_master
WHERE name IN ('outboxkit_pause', 'outboxkit_audit', 'outboxkit_outbox', 'outboxkit_inbox',
    'outboxkit_attempt', 'outboxkit_handler', 'outboxkit_dead_letter', 'outboxkit_published',
    'outboxkit_listener', 'outboxkit_idempotency', 'outboxkit_effect', 'outboxkit_sharding',
    'outboxkit_shard_member', 'outboxkit_schema_version') UNION ALL SELECT 'column', m.name, c.name
FROM sqlite_master m, pragma_table_info(m.name) c
WHERE m.name IN ('outboxkit_pause', 'outboxkit_audit', 'outboxkit_outbox', 'outboxkit_inbox',
    'outboxkit_attempt', 'outboxkit_handler', 'outboxkit_dead_letter', 'outboxkit_published',
    'outboxkit_listener', 'outboxkit_idempotency', 'outboxkit_effect', 'outboxkit_sharding',
    'outboxkit_shard_member', 'outboxkit_schema_version') UNION ALL SELECT 'index', tbl_name, name
FROM sqlite_master
WHERE type = 'index' AND tbl_name IN ('outboxkit_pause', 'outboxkit_audit', 'outboxkit_outbox',
    'outboxkit_inbox', 'outboxkit_attempt', 'outboxkit_handler', 'outboxkit_dead_letter',
    'outboxkit_published', 'outboxkit_listener', 'outboxkit_idempotency', 'outboxkit_effect',
    'outboxkit_sharding', 'outboxkit_shard_member', 'outboxkit_schema_version');
