DO $make$
DECLARE place text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = 'outboxkit_idempotency'::regclass);
BEGIN
    EXECUTE replace($ddl$
        CREATE OR REPLACE FUNCTION <place>.outboxkit_answered() RETURNS trigger LANGUAGE plpgsql AS $body$
        BEGIN
            IF EXISTS (
                SELECT FROM <place>.outboxkit_idempotency AS request
                WHERE request.scope OPERATOR(pg_catalog.=) NEW.scope
                AND request.principal OPERATOR(pg_catalog.=) NEW.principal
                AND request.key OPERATOR(pg_catalog.=) NEW.key
                AND request.state OPERATOR(pg_catalog.=) 'processing' AND request.locked_until IS NULL
            ) THEN
                RAISE EXCEPTION 'outboxkit: a request with an idempotency key must not commit before it has its answer'
                USING ERRCODE = 'invalid_transaction_termination', HINT = 'In an endpoint leave out the COMMIT. '
                    'In your own code call ledger.complete first, or roll back.';
            END IF;
            RETURN NULL;
        END $body$;
        CREATE CONSTRAINT TRIGGER outboxkit_answered AFTER INSERT OR UPDATE ON <place>.outboxkit_idempotency
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
        WHEN (NEW.state OPERATOR(pg_catalog.=) 'processing' AND NEW.locked_until IS NULL)
        EXECUTE FUNCTION <place>.outboxkit_answered();
    $ddl$, '<place>', place);
END $make$
