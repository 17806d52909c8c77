DO $make$
DECLARE place text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = 'outboxkit_inbox'::regclass);
BEGIN
    EXECUTE replace($ddl$
        CREATE OR REPLACE FUNCTION <place>.outboxkit_guard() RETURNS trigger LANGUAGE plpgsql AS $body$
        BEGIN
            IF coalesce(pg_catalog.current_setting('outboxkit.lifted', true), '') OPERATOR(pg_catalog.<>) 'yes' THEN
                RAISE EXCEPTION 'outboxkit: a handler must not end the transaction that holds its inbox row'
                USING ERRCODE = 'invalid_transaction_termination', HINT = 'Leave COMMIT to the caller. '
                    'SET CONSTRAINTS ALL IMMEDIATE is refused as well: name the constraints.';
            END IF;
            RETURN NULL;
        END $body$;
        CREATE CONSTRAINT TRIGGER outboxkit_guard AFTER INSERT ON <place>.outboxkit_inbox
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
        WHEN (pg_catalog.current_setting('outboxkit.guard', true) OPERATOR(pg_catalog.=) 'on')
        EXECUTE FUNCTION <place>.outboxkit_guard();
    $ddl$, '<place>', place);
END $make$
