DROP INDEX outboxkit_outbox_due;

ALTER TABLE outboxkit_outbox ADD COLUMN held BOOLEAN DEFAULT false NOT NULL;

COMMENT ON COLUMN outboxkit_outbox.held IS 'a retry, or behind one of its key';

ALTER TABLE outboxkit_outbox ADD COLUMN first_failed_at TIMESTAMP WITH TIME ZONE;

ALTER TABLE outboxkit_outbox ADD COLUMN expires_at TIMESTAMP WITH TIME ZONE;

COMMENT ON COLUMN outboxkit_outbox.expires_at IS 'not published after this';

ALTER TABLE outboxkit_outbox ADD COLUMN discard_unroutable BOOLEAN DEFAULT false NOT NULL;

ALTER TABLE outboxkit_outbox ADD COLUMN dedup BOOLEAN DEFAULT false NOT NULL;

COMMENT ON COLUMN outboxkit_outbox.dedup IS 'one row for an id at a time';

ALTER TABLE outboxkit_dead_letter ADD COLUMN position BIGINT;

COMMENT ON COLUMN outboxkit_dead_letter.position IS 'the place that it had in the outbox';

ALTER TABLE outboxkit_dead_letter ADD COLUMN parked BOOLEAN DEFAULT false NOT NULL;

COMMENT ON COLUMN outboxkit_dead_letter.parked IS 'later messages of its key wait';

ALTER TABLE outboxkit_dead_letter ADD COLUMN first_failed_at TIMESTAMP WITH TIME ZONE;

ALTER TABLE outboxkit_dead_letter ADD COLUMN discard_unroutable BOOLEAN DEFAULT false NOT NULL;

ALTER TABLE outboxkit_dead_letter ADD COLUMN resolution VARCHAR(10);

COMMENT ON COLUMN outboxkit_dead_letter.resolution IS 'replayed or discarded; null: open';

ALTER TABLE outboxkit_dead_letter ADD COLUMN resolved_at TIMESTAMP WITH TIME ZONE;

ALTER TABLE outboxkit_dead_letter ADD COLUMN resolved_by VARCHAR(255);

UPDATE outboxkit_outbox SET held = true WHERE due_at IS NOT NULL AND attempts > 0;

CREATE INDEX outboxkit_outbox_due ON outboxkit_outbox (due_at, position) WHERE due_at IS NOT NULL;

CREATE INDEX outboxkit_outbox_key ON outboxkit_outbox (key, position) WHERE key IS NOT NULL AND due_at IS NULL;

CREATE INDEX outboxkit_outbox_held ON outboxkit_outbox (key, position) WHERE held;

CREATE INDEX outboxkit_outbox_delayed ON outboxkit_outbox (message_id) WHERE due_at IS NOT NULL;

CREATE UNIQUE INDEX outboxkit_outbox_dedup ON outboxkit_outbox (message_id) WHERE dedup;

CREATE INDEX outboxkit_dead_letter_open ON outboxkit_dead_letter (id) WHERE resolution IS NULL;

CREATE INDEX outboxkit_dead_letter_parked ON outboxkit_dead_letter (key) WHERE parked;

CREATE INDEX outboxkit_dead_letter_message ON outboxkit_dead_letter (message_id);

CREATE TABLE outboxkit_published (
    published_at TIMESTAMP WITH TIME ZONE NOT NULL,
    position BIGINT NOT NULL,
    message_id VARCHAR(255) NOT NULL,
    type VARCHAR(255) NOT NULL,
    topic VARCHAR(255),
    key VARCHAR(255),
    payload BYTEA NOT NULL,
    headers BYTEA NOT NULL,
    correlation_id VARCHAR(255),
    causation_id VARCHAR(255),
    content_type VARCHAR(255) NOT NULL,
    content_encoding VARCHAR(255),
    created_at TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (published_at, position)
)
 PARTITION BY RANGE (published_at);

CREATE TABLE outboxkit_sleeper (
    name VARCHAR(255) NOT NULL,
    until TIMESTAMP WITH TIME ZONE NOT NULL,
    PRIMARY KEY (name)
);

COMMENT ON COLUMN outboxkit_sleeper.until IS 'after this the relay has gone without a word';

CREATE INDEX outboxkit_sleeper_until ON outboxkit_sleeper (until);

CREATE TABLE outboxkit_published_default PARTITION OF outboxkit_published DEFAULT;

ALTER TABLE outboxkit_sleeper SET UNLOGGED;

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
END $make$;

DROP TRIGGER outboxkit_ring ON outboxkit_outbox;

DROP FUNCTION outboxkit_ring();

DROP TABLE outboxkit_sleeper;

DROP TABLE outboxkit_published;

DROP INDEX outboxkit_dead_letter_message;

DROP INDEX outboxkit_outbox_due;

DROP INDEX outboxkit_outbox_key;

DROP INDEX outboxkit_outbox_held;

DROP INDEX outboxkit_outbox_delayed;

DROP INDEX outboxkit_outbox_dedup;

DROP INDEX outboxkit_dead_letter_open;

DROP INDEX outboxkit_dead_letter_parked;

UPDATE outboxkit_outbox SET due_at = NULL WHERE held;

CREATE INDEX outboxkit_outbox_due ON outboxkit_outbox (due_at) WHERE due_at IS NOT NULL;

ALTER TABLE outboxkit_outbox DROP COLUMN dedup;

ALTER TABLE outboxkit_outbox DROP COLUMN discard_unroutable;

ALTER TABLE outboxkit_outbox DROP COLUMN expires_at;

ALTER TABLE outboxkit_outbox DROP COLUMN first_failed_at;

ALTER TABLE outboxkit_outbox DROP COLUMN held;

ALTER TABLE outboxkit_dead_letter DROP COLUMN resolved_by;

ALTER TABLE outboxkit_dead_letter DROP COLUMN resolved_at;

ALTER TABLE outboxkit_dead_letter DROP COLUMN resolution;

ALTER TABLE outboxkit_dead_letter DROP COLUMN discard_unroutable;

ALTER TABLE outboxkit_dead_letter DROP COLUMN first_failed_at;

ALTER TABLE outboxkit_dead_letter DROP COLUMN parked;

ALTER TABLE outboxkit_dead_letter DROP COLUMN position;

