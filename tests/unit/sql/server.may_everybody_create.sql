SELECT nspname AS schema, has_schema_privilege('public', pg_namespace.oid, 'CREATE') AS may_create
FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE pg_class.oid = to_regclass('outboxkit_outbox');
