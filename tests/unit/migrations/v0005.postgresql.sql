ALTER TABLE outboxkit_dead_letter ADD COLUMN traceback TEXT;

COMMENT ON COLUMN outboxkit_dead_letter.traceback IS 'of the handler''s last failure, its end';

CREATE TABLE outboxkit_handler (
    handler VARCHAR(255) NOT NULL,
    queue VARCHAR(255) NOT NULL,
    function VARCHAR(255),
    last_seen TIMESTAMP WITH TIME ZONE DEFAULT CURRENT_TIMESTAMP NOT NULL,
    PRIMARY KEY (handler, queue)
);

COMMENT ON COLUMN outboxkit_handler.function IS 'module and name, for people who look';

DROP TABLE outboxkit_handler;

ALTER TABLE outboxkit_dead_letter DROP COLUMN traceback;

