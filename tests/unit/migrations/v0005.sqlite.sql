ALTER TABLE outboxkit_dead_letter ADD COLUMN traceback TEXT;

CREATE TABLE outboxkit_handler (
    handler VARCHAR(255) NOT NULL,
    queue VARCHAR(255) NOT NULL,
    function VARCHAR(255),
    last_seen DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL,
    PRIMARY KEY (handler, queue)
);

DROP TABLE outboxkit_handler;

ALTER TABLE outboxkit_dead_letter DROP COLUMN traceback;

