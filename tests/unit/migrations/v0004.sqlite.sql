ALTER TABLE outboxkit_outbox ADD COLUMN destination VARCHAR(255) DEFAULT 'default' NOT NULL;

ALTER TABLE outboxkit_outbox ADD COLUMN reply VARCHAR(255);

ALTER TABLE outboxkit_dead_letter ADD COLUMN destination VARCHAR(255) DEFAULT 'default' NOT NULL;

ALTER TABLE outboxkit_dead_letter ADD COLUMN reply VARCHAR(255);

ALTER TABLE outboxkit_published ADD COLUMN destination VARCHAR(255) DEFAULT 'default' NOT NULL;

ALTER TABLE outboxkit_published ADD COLUMN reply VARCHAR(255);

DROP INDEX outboxkit_outbox_ready;

DROP INDEX outboxkit_outbox_due;

DROP INDEX outboxkit_outbox_key;

DROP INDEX outboxkit_outbox_held;

CREATE INDEX outboxkit_outbox_ready ON outboxkit_outbox (destination, position) WHERE due_at IS NULL;

CREATE INDEX outboxkit_outbox_due ON outboxkit_outbox (destination, due_at, position) WHERE due_at IS NOT NULL;

CREATE INDEX outboxkit_outbox_key ON outboxkit_outbox ("key", destination, position) WHERE "key" IS NOT NULL AND due_at IS NULL;

CREATE INDEX outboxkit_outbox_held ON outboxkit_outbox ("key", destination, position) WHERE held;

CREATE TABLE outboxkit_idempotency (
    scope VARCHAR(255) NOT NULL,
    principal VARCHAR(255) NOT NULL,
    "key" VARCHAR(255) NOT NULL,
    fingerprint BLOB NOT NULL,
    state VARCHAR(10) NOT NULL,
    token VARCHAR(36) NOT NULL,
    steps BLOB,
    response_status INTEGER,
    response_headers BLOB,
    response_body BLOB,
    locked_until DATETIME,
    created_at DATETIME NOT NULL,
    expires_at DATETIME NOT NULL,
    PRIMARY KEY (scope, principal, "key")
);

CREATE INDEX outboxkit_idempotency_expires ON outboxkit_idempotency (expires_at);

CREATE TABLE outboxkit_effect (
    "key" VARCHAR(600) NOT NULL,
    state VARCHAR(10) NOT NULL,
    token VARCHAR(36) NOT NULL,
    result BLOB,
    started_at DATETIME NOT NULL,
    finished_at DATETIME,
    locked_until DATETIME NOT NULL,
    PRIMARY KEY ("key")
);

CREATE INDEX outboxkit_effect_started ON outboxkit_effect (started_at);

CREATE INDEX outboxkit_effect_open ON outboxkit_effect (locked_until) WHERE state = 'started';

DROP TABLE outboxkit_effect;

DROP TABLE outboxkit_idempotency;

DROP INDEX outboxkit_outbox_ready;

DROP INDEX outboxkit_outbox_due;

DROP INDEX outboxkit_outbox_key;

DROP INDEX outboxkit_outbox_held;

CREATE INDEX outboxkit_outbox_ready ON outboxkit_outbox (position) WHERE due_at IS NULL;

CREATE INDEX outboxkit_outbox_due ON outboxkit_outbox (due_at, position) WHERE due_at IS NOT NULL;

CREATE INDEX outboxkit_outbox_key ON outboxkit_outbox ("key", position) WHERE "key" IS NOT NULL AND due_at IS NULL;

CREATE INDEX outboxkit_outbox_held ON outboxkit_outbox ("key", position) WHERE held;

ALTER TABLE outboxkit_outbox DROP COLUMN reply;

ALTER TABLE outboxkit_outbox DROP COLUMN destination;

ALTER TABLE outboxkit_dead_letter DROP COLUMN reply;

ALTER TABLE outboxkit_dead_letter DROP COLUMN destination;

ALTER TABLE outboxkit_published DROP COLUMN reply;

ALTER TABLE outboxkit_published DROP COLUMN destination;

