DO $make$
DECLARE place text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = 'outboxkit_idempotency'::regclass);
BEGIN
    EXECUTE replace($ddl$
        CREATE OR REPLACE FUNCTION <place>.outboxkit_answered() RETURNS trigger LANGUAGE plpgsql AS $body$
        DECLARE
            statement CONSTANT bytea := pg_catalog.timestamptz_send(pg_catalog.statement_timestamp());
        BEGIN
            IF NOT EXISTS (
                SELECT FROM <place>.outboxkit_idempotency
                WHERE ROW(scope, principal, key) OPERATOR(pg_catalog.=) ROW(NEW.scope, NEW.principal, NEW.key)
                AND state OPERATOR(pg_catalog.=) 'processing' AND locked_until IS NULL
            ) THEN
                RETURN NULL;
            ELSIF NEW.response_headers OPERATOR(pg_catalog.=) statement THEN
                RAISE EXCEPTION 'outboxkit: a request with an idempotency key must not commit before it has its answer'
                USING ERRCODE = 'invalid_transaction_termination', HINT = 'In an endpoint leave out the COMMIT. '
                    'In your own code call ledger.complete first, or roll back.';
            END IF;
            -- This may be a COMMIT or SET CONSTRAINTS ALL IMMEDIATE. The row is deferred again, with a mark of the
            -- statement: only a COMMIT comes back to it in the same one.
            SET CONSTRAINTS <place>.outboxkit_answered DEFERRED;
            UPDATE <place>.outboxkit_idempotency SET response_headers = statement
            WHERE ROW(scope, principal, key) OPERATOR(pg_catalog.=) ROW(NEW.scope, NEW.principal, NEW.key);
            RETURN NULL;
        END $body$;
        CREATE CONSTRAINT TRIGGER outboxkit_answered AFTER INSERT OR UPDATE ON <place>.outboxkit_idempotency
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
        WHEN (NEW.state OPERATOR(pg_catalog.=) 'processing' AND NEW.locked_until IS NULL)
        EXECUTE FUNCTION <place>.outboxkit_answered();
    $ddl$, '<place>', place);
END $make$
