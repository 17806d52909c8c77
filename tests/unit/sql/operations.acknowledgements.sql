SELECT CAST(objid AS bigint) AS session, pid AS keeper
FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 2 AND granted AND CAST(classid AS bigint) = :pause AND
    database = (SELECT oid
    FROM pg_database
    WHERE datname = current_database());
