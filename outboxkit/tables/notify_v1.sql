DO $make$
DECLARE place text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = 'outboxkit_outbox'::regclass);
BEGIN
    EXECUTE replace($ddl$
        CREATE OR REPLACE FUNCTION <place>.outboxkit_notify() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $body$
        DECLARE moment pg_catalog.timestamptz := pg_catalog.clock_timestamp();
        BEGIN
            IF EXISTS (SELECT FROM <place>.outboxkit_listener WHERE until OPERATOR(pg_catalog.>) moment) THEN
                IF pg_catalog.current_setting('max_prepared_transactions') OPERATOR(pg_catalog.=) '0'
                    AND pg_catalog.pg_notification_queue_usage() OPERATOR(pg_catalog.<) 0.5 THEN
                    PERFORM pg_catalog.pg_notify(pg_catalog.concat('outboxkit_', TG_RELID), '');
                END IF;
            END IF;
            RETURN NULL;
        END $body$;
        CREATE TRIGGER outboxkit_notify AFTER INSERT ON <place>.outboxkit_outbox
        FOR EACH STATEMENT EXECUTE FUNCTION <place>.outboxkit_notify();
    $ddl$, '<place>', place);
END $make$
