ALTER TABLE outboxkit_outbox ADD COLUMN destination VARCHAR(255) DEFAULT 'default' NOT NULL;

ALTER TABLE outboxkit_outbox ADD COLUMN reply VARCHAR(255);

COMMENT ON COLUMN outboxkit_outbox.reply IS 'the type of the message that the destination''s answer becomes';

ALTER TABLE outboxkit_dead_letter ADD COLUMN destination VARCHAR(255) DEFAULT 'default' NOT NULL;

ALTER TABLE outboxkit_dead_letter ADD COLUMN reply VARCHAR(255);

COMMENT ON COLUMN outboxkit_dead_letter.reply IS 'the type of the message that the destination''s answer becomes';

ALTER TABLE outboxkit_published ADD COLUMN destination VARCHAR(255) DEFAULT 'default' NOT NULL;

ALTER TABLE outboxkit_published ADD COLUMN reply VARCHAR(255);

COMMENT ON COLUMN outboxkit_published.reply IS 'the type of the message that the destination''s answer becomes';

DROP INDEX outboxkit_outbox_ready;

DROP INDEX outboxkit_outbox_due;

DROP INDEX outboxkit_outbox_key;

DROP INDEX outboxkit_outbox_held;

CREATE INDEX outboxkit_outbox_ready ON outboxkit_outbox (destination, position) WHERE due_at IS NULL;

CREATE INDEX outboxkit_outbox_due ON outboxkit_outbox (destination, due_at, position) WHERE due_at IS NOT NULL;

CREATE INDEX outboxkit_outbox_key ON outboxkit_outbox (key, destination, position) WHERE key IS NOT NULL AND due_at IS NULL;

CREATE INDEX outboxkit_outbox_held ON outboxkit_outbox (key, destination, position) WHERE held;

CREATE TABLE outboxkit_idempotency (
    scope VARCHAR(255) NOT NULL,
    principal VARCHAR(255) NOT NULL,
    key VARCHAR(255) NOT NULL,
    fingerprint BYTEA NOT NULL,
    state VARCHAR(10) NOT NULL,
    token VARCHAR(36) NOT NULL,
    steps BYTEA,
    response_status INTEGER,
    response_headers BYTEA,
    response_body BYTEA,
    locked_until TIMESTAMP WITH TIME ZONE,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
    PRIMARY KEY (scope, principal, key)
);

COMMENT ON COLUMN outboxkit_idempotency.scope IS 'the operation, such as POST /orders';

COMMENT ON COLUMN outboxkit_idempotency.principal IS 'the caller; empty: the key is nobody''s own';

COMMENT ON COLUMN outboxkit_idempotency.fingerprint IS 'SHA-256 of the request';

COMMENT ON COLUMN outboxkit_idempotency.state IS 'processing or done';

COMMENT ON COLUMN outboxkit_idempotency.token IS 'of the run that may write the response';

COMMENT ON COLUMN outboxkit_idempotency.steps IS 'results of finished steps, as a JSON object';

COMMENT ON COLUMN outboxkit_idempotency.response_headers IS 'a JSON array of pairs';

COMMENT ON COLUMN outboxkit_idempotency.locked_until IS 'of a run in steps: until then nobody else runs';

COMMENT ON COLUMN outboxkit_idempotency.expires_at IS 'after this the key is new again';

CREATE INDEX outboxkit_idempotency_expires ON outboxkit_idempotency (expires_at);

CREATE TABLE outboxkit_effect (
    key VARCHAR(600) NOT NULL,
    state VARCHAR(10) NOT NULL,
    token VARCHAR(36) NOT NULL,
    result BYTEA,
    started_at TIMESTAMP WITH TIME ZONE NOT NULL,
    finished_at TIMESTAMP WITH TIME ZONE,
    locked_until TIMESTAMP WITH TIME ZONE NOT NULL,
    PRIMARY KEY (key)
);

COMMENT ON COLUMN outboxkit_effect.state IS 'started, done, repeated or skipped';

COMMENT ON COLUMN outboxkit_effect.token IS 'of the run that may record the result';

COMMENT ON COLUMN outboxkit_effect.result IS 'JSON';

COMMENT ON COLUMN outboxkit_effect.locked_until IS 'until then a start without an end is a running one';

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

CREATE INDEX outboxkit_outbox_key ON outboxkit_outbox (key, position) WHERE key IS NOT NULL AND due_at IS NULL;

CREATE INDEX outboxkit_outbox_held ON outboxkit_outbox (key, position) WHERE held;

ALTER TABLE outboxkit_outbox DROP COLUMN reply;

ALTER TABLE outboxkit_outbox DROP COLUMN destination;

ALTER TABLE outboxkit_dead_letter DROP COLUMN reply;

ALTER TABLE outboxkit_dead_letter DROP COLUMN destination;

ALTER TABLE outboxkit_published DROP COLUMN reply;

ALTER TABLE outboxkit_published DROP COLUMN destination;

