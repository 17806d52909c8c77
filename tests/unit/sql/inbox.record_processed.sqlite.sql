INSERT INTO outboxkit_inbox (handler, message_id, type, processed_at, attempts, payload_crc)
VALUES (:handler, :message_id, :type, max(CURRENT_TIMESTAMP, coalesce(:made, CURRENT_TIMESTAMP)),
    :attempts, :payload_crc)
ON CONFLICT (handler, message_id) DO NOTHING
RETURNING message_id, coalesce((SELECT max(outboxkit_schema_version.installation) AS max_1
        FROM outboxkit_schema_version), '') AS coalesce_1;
