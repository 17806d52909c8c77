DO $aside$
DECLARE made text := (SELECT conname FROM pg_constraint WHERE conrelid = 'outboxkit_inbox'::regclass AND contype = 'p');
BEGIN
    ALTER TABLE outboxkit_inbox RENAME TO outboxkit_inbox_default;
    EXECUTE 'ALTER TABLE outboxkit_inbox_default RENAME CONSTRAINT ' || quote_ident(made)
        || ' TO outboxkit_inbox_default_pkey';
END $aside$;

ALTER TABLE outboxkit_inbox_default ADD COLUMN attempts INTEGER DEFAULT '1' NOT NULL;

ALTER TABLE outboxkit_inbox_default ADD COLUMN duration_ms INTEGER;

ALTER TABLE outboxkit_inbox_default ALTER COLUMN message_id TYPE VARCHAR(255) COLLATE "C";

CREATE TABLE outboxkit_inbox (
    handler VARCHAR(255) NOT NULL,
    message_id VARCHAR(255) COLLATE "C" NOT NULL,
    type VARCHAR(255) NOT NULL,
    processed_at TIMESTAMP WITH TIME ZONE DEFAULT CURRENT_TIMESTAMP NOT NULL,
    attempts INTEGER DEFAULT '1' NOT NULL,
    duration_ms INTEGER,
    PRIMARY KEY (handler, message_id)
)
 PARTITION BY RANGE (message_id);

COMMENT ON COLUMN outboxkit_inbox.duration_ms IS 'of handlers that took longer than 100 ms; null: they did not';

DO $inherit$
DECLARE
    elder oid := 'outboxkit_inbox_default'::regclass;
    owner name := (SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = elder);
    given record;
BEGIN
    FOR given IN
        SELECT grantee, privilege_type, is_grantable
        FROM pg_class JOIN LATERAL aclexplode(relacl) ON true
        WHERE oid = elder AND grantee <> relowner
    LOOP
        EXECUTE 'GRANT ' || given.privilege_type || ' ON outboxkit_inbox TO '
            || CASE given.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(given.grantee)) END
            || CASE WHEN given.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END;
    END LOOP;
    IF owner <> current_user THEN
        EXECUTE 'ALTER TABLE outboxkit_inbox OWNER TO ' || quote_ident(owner);
    END IF;
END $inherit$;

ALTER TABLE outboxkit_inbox ATTACH PARTITION outboxkit_inbox_default DEFAULT;

CREATE INDEX outboxkit_inbox_processed ON outboxkit_inbox_default (processed_at);

CREATE TABLE outboxkit_attempt (
    queue VARCHAR(255) NOT NULL,
    message_id VARCHAR(255) NOT NULL,
    starts INTEGER DEFAULT '0' NOT NULL,
    failures INTEGER DEFAULT '0' NOT NULL,
    first_failed_at TIMESTAMP WITH TIME ZONE,
    touched_at TIMESTAMP WITH TIME ZONE DEFAULT CURRENT_TIMESTAMP NOT NULL,
    PRIMARY KEY (queue, message_id)
);

COMMENT ON COLUMN outboxkit_attempt.starts IS 'that have not ended: crashes, it may be';

COMMENT ON COLUMN outboxkit_attempt.failures IS 'where no broker counts them';

DROP TABLE outboxkit_attempt;

ALTER TABLE outboxkit_inbox DETACH PARTITION outboxkit_inbox_default;

INSERT INTO outboxkit_inbox_default SELECT * FROM outboxkit_inbox;

DROP INDEX outboxkit_inbox_processed;

DROP TABLE outboxkit_inbox;

ALTER TABLE outboxkit_inbox_default ALTER COLUMN message_id TYPE VARCHAR(255) COLLATE "default";

DO $back$
BEGIN
    ALTER TABLE outboxkit_inbox_default RENAME CONSTRAINT outboxkit_inbox_default_pkey TO outboxkit_inbox_pkey;
    ALTER TABLE outboxkit_inbox_default RENAME TO outboxkit_inbox;
END $back$;

ALTER TABLE outboxkit_inbox DROP COLUMN duration_ms;

ALTER TABLE outboxkit_inbox DROP COLUMN attempts;

