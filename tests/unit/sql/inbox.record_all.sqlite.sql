INSERT INTO outboxkit_inbox (handler, message_id, type, attempts, payload_crc, processed_at) SELECT
    given.value, json_extract(:message_ids, printf('$[%d]', given."key")) AS json_extract_1,
    json_extract(:types, printf('$[%d]', given."key")) AS json_extract_2, json_extract(:attempts,
    printf('$[%d]', given."key")) AS json_extract_3, json_extract(:payload_crcs, printf('$[%d]',
    given."key")) AS json_extract_4, max(CURRENT_TIMESTAMP, coalesce(json_extract(:mades,
    printf('$[%d]', given."key")), CURRENT_TIMESTAMP)) AS max_2
FROM json_each(:handlers) AS given
WHERE 1 = 1
ORDER BY given."key"
ON CONFLICT (handler, message_id) DO NOTHING
RETURNING handler, message_id, coalesce((SELECT max(outboxkit_schema_version.installation) AS max_1
        FROM outboxkit_schema_version), '') AS coalesce_1;
