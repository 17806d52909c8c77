SELECT pg_advisory_xact_lock(wanted.number) AS pg_advisory_xact_lock_1
FROM (SELECT DISTINCT hashtextextended('outboxkit:' || given.key, 0) AS number
    FROM unnest(:keys::VARCHAR[]) AS given(key)
    ORDER BY number) AS wanted;
