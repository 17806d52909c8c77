CREATE TABLE outboxkit_attempt (
    queue VARCHAR(255) NOT NULL,
    message_id VARCHAR(255) NOT NULL,
    starts INTEGER DEFAULT '0' NOT NULL,
    failures INTEGER DEFAULT '0' NOT NULL,
    first_failed_at DATETIME,
    touched_at DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL,
    PRIMARY KEY (queue, message_id)
);

CREATE TABLE outboxkit_audit (
    id INTEGER NOT NULL,
    action VARCHAR(50) NOT NULL,
    operator VARCHAR(255) NOT NULL,
    filter TEXT NOT NULL,
    started_at DATETIME NOT NULL,
    ended_at DATETIME,
    affected BIGINT DEFAULT '0' NOT NULL,
    result TEXT,
    PRIMARY KEY (id)
);

CREATE INDEX outboxkit_audit_started ON outboxkit_audit (started_at, id);

CREATE TABLE outboxkit_dead_letter (
    id INTEGER NOT NULL,
    side VARCHAR(10) NOT NULL,
    queue VARCHAR(255),
    handler VARCHAR(255),
    message_id VARCHAR(255),
    type VARCHAR(255),
    topic VARCHAR(255),
    "key" VARCHAR(255),
    payload BLOB NOT NULL,
    headers BLOB NOT NULL,
    correlation_id VARCHAR(255),
    causation_id VARCHAR(255),
    content_type VARCHAR(255) NOT NULL,
    content_encoding VARCHAR(255),
    version INTEGER DEFAULT '1' NOT NULL,
    created_at DATETIME,
    reason VARCHAR(50) NOT NULL,
    error TEXT,
    attempts INTEGER NOT NULL,
    dead_at DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL,
    position BIGINT,
    parked BOOLEAN DEFAULT 0 NOT NULL,
    first_failed_at DATETIME,
    discard_unroutable BOOLEAN DEFAULT 0 NOT NULL,
    resolution VARCHAR(10),
    resolved_at DATETIME,
    resolved_by VARCHAR(255),
    destination VARCHAR(255) DEFAULT 'default' NOT NULL,
    reply VARCHAR(255),
    traceback TEXT,
    PRIMARY KEY (id)
);

CREATE INDEX outboxkit_dead_letter_message ON outboxkit_dead_letter (message_id);

CREATE UNIQUE INDEX outboxkit_dead_letter_once ON outboxkit_dead_letter (message_id, queue, handler) WHERE resolution IS NULL AND side = 'inbox';

CREATE INDEX outboxkit_dead_letter_open ON outboxkit_dead_letter (id) WHERE resolution IS NULL;

CREATE INDEX outboxkit_dead_letter_parked ON outboxkit_dead_letter ("key") WHERE parked;

CREATE UNIQUE INDEX outboxkit_dead_letter_unhandled ON outboxkit_dead_letter (message_id, queue) WHERE resolution IS NULL AND side = 'inbox' AND handler IS NULL;

CREATE TABLE outboxkit_effect (
    "key" VARCHAR(600) NOT NULL,
    state VARCHAR(10) NOT NULL,
    token VARCHAR(36) NOT NULL,
    result BLOB,
    started_at DATETIME NOT NULL,
    finished_at DATETIME,
    locked_until DATETIME NOT NULL,
    used_at DATETIME NOT NULL,
    handler VARCHAR(255),
    message_id VARCHAR(255),
    PRIMARY KEY ("key")
);

CREATE INDEX outboxkit_effect_open ON outboxkit_effect (locked_until) WHERE state = 'started';

CREATE INDEX outboxkit_effect_used ON outboxkit_effect (used_at);

CREATE TABLE outboxkit_handler (
    handler VARCHAR(255) NOT NULL,
    queue VARCHAR(255) NOT NULL,
    function VARCHAR(255),
    types TEXT,
    first_seen DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL,
    last_seen DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL,
    retention BIGINT,
    PRIMARY KEY (handler, queue)
);

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

CREATE TABLE outboxkit_inbox (
    handler VARCHAR(255) NOT NULL,
    message_id VARCHAR(255) NOT NULL,
    type VARCHAR(255) NOT NULL,
    processed_at DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL,
    attempts INTEGER DEFAULT '1' NOT NULL,
    payload_crc INTEGER,
    duration_ms INTEGER,
    PRIMARY KEY (handler, message_id)
);

CREATE TABLE outboxkit_listener (
    name VARCHAR(255) NOT NULL,
    until DATETIME NOT NULL,
    PRIMARY KEY (name)
);

CREATE INDEX outboxkit_listener_until ON outboxkit_listener (until);

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
    version INTEGER DEFAULT '1' NOT NULL,
    created_at DATETIME,
    queue VARCHAR(255),
    due_at DATETIME,
    attempts INTEGER DEFAULT '0' NOT NULL,
    last_error TEXT,
    held BOOLEAN DEFAULT 0 NOT NULL,
    first_failed_at DATETIME,
    expires_at DATETIME,
    discard_unroutable BOOLEAN DEFAULT 0 NOT NULL,
    dedup BOOLEAN DEFAULT 0 NOT NULL,
    destination VARCHAR(255) DEFAULT 'default' NOT NULL,
    reply VARCHAR(255)
);

CREATE UNIQUE INDEX outboxkit_outbox_dedup ON outboxkit_outbox (message_id) WHERE dedup;

CREATE INDEX outboxkit_outbox_delayed ON outboxkit_outbox (message_id) WHERE due_at IS NOT NULL;

CREATE INDEX outboxkit_outbox_due ON outboxkit_outbox (destination, due_at, position) WHERE due_at IS NOT NULL;

CREATE INDEX outboxkit_outbox_held ON outboxkit_outbox ("key", destination, position) WHERE held;

CREATE INDEX outboxkit_outbox_key ON outboxkit_outbox ("key", destination, position) WHERE "key" IS NOT NULL AND due_at IS NULL;

CREATE INDEX outboxkit_outbox_ready ON outboxkit_outbox (destination, position) WHERE due_at IS NULL;

CREATE TABLE outboxkit_pause (
    process VARCHAR(10) NOT NULL,
    name VARCHAR(255) NOT NULL,
    since DATETIME NOT NULL,
    until DATETIME,
    why TEXT NOT NULL,
    paused_by VARCHAR(255) NOT NULL,
    PRIMARY KEY (process, name)
);

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
    version INTEGER DEFAULT '1' NOT NULL,
    created_at DATETIME,
    queue VARCHAR(255),
    destination VARCHAR(255) DEFAULT 'default' NOT NULL,
    reply VARCHAR(255),
    PRIMARY KEY (published_at, position)
);

CREATE TABLE outboxkit_schema_version (
    version INTEGER NOT NULL,
    installation VARCHAR(36) DEFAULT (lower(hex(randomblob(16)))) NOT NULL,
    PRIMARY KEY (version)
);

CREATE TABLE outboxkit_shard_member (
    queue VARCHAR(255) NOT NULL,
    member VARCHAR(36) NOT NULL,
    shards INTEGER NOT NULL,
    seen_at DATETIME NOT NULL,
    PRIMARY KEY (queue, member)
);

CREATE TABLE outboxkit_sharding (
    queue VARCHAR(255) NOT NULL,
    shards INTEGER NOT NULL,
    draining TEXT,
    moved_from INTEGER,
    move BIGINT DEFAULT '0' NOT NULL,
    PRIMARY KEY (queue)
);

DROP TABLE outboxkit_sharding;

DROP TABLE outboxkit_shard_member;

DROP TABLE outboxkit_schema_version;

DROP TABLE outboxkit_published;

DROP TABLE outboxkit_pause;

DROP TABLE outboxkit_outbox;

DROP TABLE outboxkit_listener;

DROP TABLE outboxkit_inbox;

DROP TABLE outboxkit_idempotency;

DROP TABLE outboxkit_handler;

DROP TABLE outboxkit_effect;

DROP TABLE outboxkit_dead_letter;

DROP TABLE outboxkit_audit;

DROP TABLE outboxkit_attempt;

