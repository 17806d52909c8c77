WITH used AS (SELECT usename AS role, application_name AS name
    FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE 'outboxkit %' AND pid <>
        pg_backend_pid() UNION SELECT current_user, '') SELECT role, array_agg(DISTINCT name
    ORDER BY name) AS names, bool_or(rolsuper) AS is_superuser, bool_or(rolcreaterole) AS
        may_make_roles, bool_or(rolbypassrls) AS passes_policies, bool_or(pg_has_role(rolname,
        outbox.relowner, 'USAGE')) AS owns_outbox, bool_or(has_schema_privilege(rolname,
        outbox.relnamespace, 'CREATE')) AS may_create, bool_or(has_table_privilege(rolname,
        outbox.oid, 'TRUNCATE')) AS may_truncate
FROM used JOIN pg_roles ON rolname = role LEFT JOIN pg_class AS outbox ON outbox.oid =
    to_regclass('outboxkit_outbox')
GROUP BY role
ORDER BY role;
