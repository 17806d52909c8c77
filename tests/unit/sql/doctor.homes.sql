SELECT nspname AS schema
FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE relname = 'outboxkit_outbox' AND relkind IN ('r', 'p')
ORDER BY nspname;
