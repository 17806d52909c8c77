SELECT pg_advisory_xact_lock(:request_lock # 'outboxkit_idempotency'::regclass::oid::bigint) AS
    pg_advisory_xact_lock_1;
