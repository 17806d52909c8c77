"""What only PostgreSQL has: default partitions, and the trigger by which an insert wakes relays that are asleep."""

TRIGGER = "outboxkit_ring"
"""The trigger's name, and its function's."""
PROCESSED = "outboxkit_inbox_processed"
"""The index of the inbox's default partition."""
INDEX_PROCESSED = f"CREATE INDEX {PROCESSED} ON outboxkit_inbox_default (processed_at)"


def default_partition(table: str) -> str:
    """Make the partition of rows that fit into none."""
    return f"CREATE TABLE {table}_default PARTITION OF {table} DEFAULT"


def default_partition_again(table: str) -> str:
    """Make it again, or attach the one that was detached, and give it to the table's owner. Locks the table."""
    return f"""
DO $make$
BEGIN
    IF to_regclass('{table}_default') IS NULL THEN
        {default_partition(table)};
    ELSE
        ALTER TABLE {table} ATTACH PARTITION {table}_default DEFAULT;
    END IF;
    EXECUTE 'ALTER TABLE {table}_default OWNER TO '
        || (SELECT quote_ident(pg_get_userbyid(relowner)) FROM pg_class WHERE oid = to_regclass('{table}'));
END $make$
"""  # noqa: S608 - our own names


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
