"""The trigger of the outbox on PostgreSQL: an insert wakes relays that are asleep."""

RING = """
DO $make$
DECLARE place text := (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = 'outboxkit_outbox'::regclass);
BEGIN
    EXECUTE replace($bell$
        CREATE OR REPLACE FUNCTION <place>.outboxkit_ring() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $ring$
        DECLARE moment pg_catalog.timestamptz := pg_catalog.clock_timestamp();
        BEGIN
            IF EXISTS (SELECT FROM <place>.outboxkit_sleeper WHERE until OPERATOR(pg_catalog.>) moment) THEN
                IF pg_catalog.current_setting('max_prepared_transactions') OPERATOR(pg_catalog.=) '0'
                    AND pg_catalog.pg_notification_queue_usage() OPERATOR(pg_catalog.<) 0.5 THEN
                    PERFORM pg_catalog.pg_notify(pg_catalog.concat('outboxkit_', TG_RELID), '');
                END IF;
            END IF;
            RETURN NULL;
        EXCEPTION WHEN OTHERS THEN
            RETURN NULL;
        END $ring$;
        CREATE TRIGGER outboxkit_ring AFTER INSERT ON <place>.outboxkit_outbox
        FOR EACH STATEMENT EXECUTE FUNCTION <place>.outboxkit_ring();
    $bell$, '<place>', place);
END $make$
"""
"""The bell: an insert notifies the channel `outboxkit_<oid of the table>` while a sleeper is recorded.

It must cost the writer nothing, least of all the transaction: the writer's rights and search path do not matter, no
error leaves the function, and it is silent where a NOTIFY could make the COMMIT or a PREPARE TRANSACTION fail. Every
name and operator is qualified, which is as safe as a search path of its own and costs nothing at each call. The index
on `until` leads past dead versions of sleepers, however long vacuum has been held back.
"""
