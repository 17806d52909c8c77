SELECT CAST(parent.oid AS regclass)::text AS name, last_value AS last, max_value AS most
FROM (VALUES (to_regclass('outboxkit_outbox')), (to_regclass('outboxkit_dead_letter'))) AS ours
    (oid) JOIN pg_class AS parent ON parent.oid = ours.oid JOIN pg_depend ON refobjid = parent.oid
    AND deptype = 'i' AND classid = CAST('pg_class' AS regclass) JOIN pg_class AS child ON child.oid
    = objid AND child.relkind = 'S' JOIN pg_namespace ON pg_namespace.oid = child.relnamespace JOIN
    pg_sequences ON schemaname = nspname AND sequencename = child.relname
ORDER BY 1;
