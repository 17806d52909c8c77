SELECT count(*) AS used, CAST(current_setting('max_connections') AS integer) -
    CAST(current_setting('superuser_reserved_connections') AS integer) AS most
FROM pg_stat_activity
WHERE backend_type = 'client backend';
