WITH used AS (SELECT usename AS role, application_name AS name
    FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE 'outboxkit %' AND pid <> pg_backend_pid() UNION SELECT
        current_user, '') SELECT role, array_agg(DISTINCT name
    ORDER BY name) AS names
FROM used JOIN pg_roles ON rolname = role
GROUP BY role
ORDER BY role;
