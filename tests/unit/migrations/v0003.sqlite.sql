ALTER TABLE outboxkit_inbox ADD COLUMN attempts INTEGER DEFAULT '1' NOT NULL;

ALTER TABLE outboxkit_inbox ADD COLUMN duration_ms INTEGER;

CREATE TABLE outboxkit_attempt (
    queue VARCHAR(255) NOT NULL,
    message_id VARCHAR(255) NOT NULL,
    starts INTEGER DEFAULT '0' NOT NULL,
    failures INTEGER DEFAULT '0' NOT NULL,
    first_failed_at DATETIME,
    touched_at DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL,
    PRIMARY KEY (queue, message_id)
);

DROP TABLE outboxkit_attempt;

ALTER TABLE outboxkit_inbox DROP COLUMN duration_ms;

ALTER TABLE outboxkit_inbox DROP COLUMN attempts;

