SELECT pg_advisory_xact_lock(1869968491, wanted.number) AS pg_advisory_xact_lock_1
FROM (SELECT DISTINCT CAST(hashtextextended('outboxkit:' || given.key, 0) & 1023 AS INTEGER) AS number
    FROM unnest(:keys::VARCHAR[]) AS given(key)
    ORDER BY number) AS wanted;
