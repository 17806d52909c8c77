DROP INDEX outboxkit_outbox_due;

DROP INDEX outboxkit_outbox_ready;

ALTER TABLE outboxkit_outbox RENAME TO outboxkit_outbox_v1;

CREATE TABLE outboxkit_outbox (
    position INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    message_id VARCHAR(255) NOT NULL,
    type VARCHAR(255) NOT NULL,
    topic VARCHAR(255),
    "key" VARCHAR(255),
    payload BLOB NOT NULL,
    headers BLOB NOT NULL,
    correlation_id VARCHAR(255),
    causation_id VARCHAR(255),
    content_type VARCHAR(255) NOT NULL,
    content_encoding VARCHAR(255),
    created_at DATETIME,
    due_at DATETIME,
    attempts INTEGER DEFAULT '0' NOT NULL,
    last_error TEXT,
    held BOOLEAN DEFAULT 0 NOT NULL,
    first_failed_at DATETIME,
    expires_at DATETIME,
    discard_unroutable BOOLEAN DEFAULT 0 NOT NULL,
    dedup BOOLEAN DEFAULT 0 NOT NULL
);

INSERT INTO outboxkit_outbox ("position", "message_id", "type", "topic", "key", "payload", "headers", "correlation_id", "causation_id", "content_type", "content_encoding", "created_at", "due_at", "attempts", "last_error") SELECT "position", "message_id", "type", "topic", "key", "payload", "headers", "correlation_id", "causation_id", "content_type", "content_encoding", "created_at", "due_at", "attempts", "last_error" FROM outboxkit_outbox_v1;

DROP TABLE outboxkit_outbox_v1;

CREATE INDEX outboxkit_outbox_ready ON outboxkit_outbox (position) WHERE due_at IS NULL;

ALTER TABLE outboxkit_dead_letter ADD COLUMN position BIGINT;

ALTER TABLE outboxkit_dead_letter ADD COLUMN parked BOOLEAN DEFAULT 0 NOT NULL;

ALTER TABLE outboxkit_dead_letter ADD COLUMN first_failed_at DATETIME;

ALTER TABLE outboxkit_dead_letter ADD COLUMN discard_unroutable BOOLEAN DEFAULT 0 NOT NULL;

ALTER TABLE outboxkit_dead_letter ADD COLUMN resolution VARCHAR(10);

ALTER TABLE outboxkit_dead_letter ADD COLUMN resolved_at DATETIME;

ALTER TABLE outboxkit_dead_letter ADD COLUMN resolved_by VARCHAR(255);

UPDATE outboxkit_outbox SET held = true WHERE due_at IS NOT NULL AND attempts > 0;

CREATE INDEX outboxkit_outbox_due ON outboxkit_outbox (due_at, position) WHERE due_at IS NOT NULL;

CREATE INDEX outboxkit_outbox_key ON outboxkit_outbox ("key", position) WHERE "key" IS NOT NULL AND due_at IS NULL;

CREATE INDEX outboxkit_outbox_held ON outboxkit_outbox ("key", position) WHERE held;

CREATE INDEX outboxkit_outbox_delayed ON outboxkit_outbox (message_id) WHERE due_at IS NOT NULL;

CREATE UNIQUE INDEX outboxkit_outbox_dedup ON outboxkit_outbox (message_id) WHERE dedup;

CREATE INDEX outboxkit_dead_letter_open ON outboxkit_dead_letter (id) WHERE resolution IS NULL;

CREATE INDEX outboxkit_dead_letter_parked ON outboxkit_dead_letter ("key") WHERE parked;

CREATE INDEX outboxkit_dead_letter_message ON outboxkit_dead_letter (message_id);

CREATE TABLE outboxkit_published (
    published_at DATETIME NOT NULL,
    position INTEGER NOT NULL,
    message_id VARCHAR(255) NOT NULL,
    type VARCHAR(255) NOT NULL,
    topic VARCHAR(255),
    "key" VARCHAR(255),
    payload BLOB NOT NULL,
    headers BLOB NOT NULL,
    correlation_id VARCHAR(255),
    causation_id VARCHAR(255),
    content_type VARCHAR(255) NOT NULL,
    content_encoding VARCHAR(255),
    created_at DATETIME,
    PRIMARY KEY (published_at, position)
);

CREATE TABLE outboxkit_sleeper (
    name VARCHAR(255) NOT NULL,
    until DATETIME NOT NULL,
    PRIMARY KEY (name)
);

CREATE INDEX outboxkit_sleeper_until ON outboxkit_sleeper (until);

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

