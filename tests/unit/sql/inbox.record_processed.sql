INSERT INTO outboxkit_inbox (handler, message_id, type, processed_at, attempts, payload_crc)
VALUES (:handler, :message_id, :type, CASE WHEN (set_config('outboxkit.guard', 'on', true) = 'on') THEN
    greatest(CURRENT_TIMESTAMP, :made) END, :attempts, :payload_crc)
ON CONFLICT (handler, message_id) DO NOTHING
RETURNING outboxkit_inbox.message_id, coalesce((SELECT max(outboxkit_schema_version.installation || ':' ||
    outboxkit_schema_version.tableoid || ':' || (SELECT oid
                FROM pg_database
                WHERE datname = current_database())) AS max_1
        FROM outboxkit_schema_version), '') AS coalesce_1, CAST(pg_current_xact_id() AS VARCHAR) AS
            pg_current_xact_id_1, set_config('outboxkit.lifted', 'no', true) AS set_config_1;
