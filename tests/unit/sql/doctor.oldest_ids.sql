SELECT age(datfrozenxid) AS transactions, mxid_age(datminmxid) AS multixacts,
    CAST(current_setting('autovacuum_freeze_max_age') AS bigint) AS freeze_after
FROM pg_database
WHERE datname = current_database();
