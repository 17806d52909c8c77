CREATE TABLE outboxkit_outbox (
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
    due_at DATETIME,
    attempts INTEGER DEFAULT '0' NOT NULL,
    last_error TEXT,
    PRIMARY KEY (position)
);

CREATE INDEX outboxkit_outbox_ready ON outboxkit_outbox (position) WHERE due_at IS NULL;

CREATE INDEX outboxkit_outbox_due ON outboxkit_outbox (due_at) WHERE due_at IS NOT NULL;

CREATE TABLE outboxkit_inbox (
    handler VARCHAR(255) NOT NULL,
    message_id VARCHAR(255) NOT NULL,
    type VARCHAR(255) NOT NULL,
    processed_at DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL,
    PRIMARY KEY (handler, message_id)
);

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
    created_at DATETIME,
    reason VARCHAR(50) NOT NULL,
    error TEXT,
    attempts INTEGER NOT NULL,
    dead_at DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL,
    PRIMARY KEY (id)
);

CREATE TABLE outboxkit_schema_version (
    version INTEGER NOT NULL,
    PRIMARY KEY (version)
);

DROP TABLE outboxkit_schema_version;

DROP TABLE outboxkit_dead_letter;

DROP TABLE outboxkit_inbox;

DROP TABLE outboxkit_outbox;

