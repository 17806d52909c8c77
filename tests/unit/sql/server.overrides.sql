SELECT pair, rolname AS role, datname AS database
FROM pg_db_role_setting CROSS JOIN LATERAL unnest(setconfig) AS pair LEFT JOIN pg_roles ON pg_roles.oid = setrole LEFT
    JOIN pg_database ON pg_database.oid = setdatabase
WHERE setdatabase = 0 OR datname = current_database()
ORDER BY pair, rolname, datname;
