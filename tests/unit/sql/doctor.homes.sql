SELECT nspname AS schema, coalesce(pg_class.oid = to_regclass('outboxkit_outbox'), false) AS is_used
FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE relname = 'outboxkit_outbox' AND relkind IN ('r', 'p')
ORDER BY nspname;
