INSERT INTO outboxkit_inbox (handler, message_id, type, processed_at, attempts, payload_crc)
VALUES (:handler, :message_id, :type, max(CURRENT_TIMESTAMP, coalesce(:made, CURRENT_TIMESTAMP)),
    :attempts, :payload_crc)
ON CONFLICT (handler, message_id) DO NOTHING
RETURNING message_id, (SELECT outboxkit_schema_version.installation
    FROM outboxkit_schema_version) AS anon_1;
