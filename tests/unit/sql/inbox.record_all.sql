INSERT INTO outboxkit_inbox (handler, message_id, type, attempts, payload_crc, processed_at) SELECT given.handlers,
    given.message_ids, given.types, given.attempts, given.payload_crcs, CASE WHEN (set_config('outboxkit.guard', 'on',
    true) = 'on') THEN greatest(CURRENT_TIMESTAMP, given.mades) END AS anon_1
FROM unnest(:handlers::VARCHAR[], :message_ids::VARCHAR[], :types::VARCHAR[], :attempts::INTEGER[],
    :payload_crcs::INTEGER[], :mades::TIMESTAMP WITH TIME ZONE[]) WITH ORDINALITY AS given(handlers, message_ids, types,
    attempts, payload_crcs, mades, place)
ORDER BY given.place
ON CONFLICT (handler, message_id) DO NOTHING
RETURNING outboxkit_inbox.handler, outboxkit_inbox.message_id, coalesce((SELECT
    max(outboxkit_schema_version.installation || ':' || outboxkit_schema_version.tableoid || ':' || (SELECT oid
                FROM pg_database
                WHERE datname = current_database())) AS max_1
        FROM outboxkit_schema_version), '') AS coalesce_1, CAST(pg_current_xact_id() AS VARCHAR) AS
            pg_current_xact_id_1, set_config('outboxkit.lifted', 'no', true) AS set_config_1,
            set_config('application_name', CASE WHEN (right(current_setting('application_name'), 8) = ' (batch)') THEN
            current_setting('application_name') ELSE left(current_setting('application_name'), 55) || ' (batch)' END,
            true) AS set_config_2;
