SELECT relname
FROM pg_class JOIN pg_roles ON rolname = :role
WHERE relnamespace = (SELECT relnamespace
    FROM pg_class
    WHERE oid = to_regclass('outboxkit_outbox')) AND starts_with(relname, 'outboxkit_') AND relrowsecurity AND NOT
        relispartition AND NOT (rolsuper OR rolbypassrls) AND (relforcerowsecurity OR NOT pg_has_role(pg_roles.oid,
        relowner, 'USAGE')) AND NOT EXISTS (SELECT
    FROM pg_policy, unnest(polroles) AS member
    WHERE polrelid = pg_class.oid AND CASE WHEN member = 0 THEN true ELSE pg_has_role(pg_roles.oid, member, 'USAGE')
        END)
ORDER BY relname;
