INSERT INTO outboxkit_inbox (handler, message_id, type, processed_at, attempts)
VALUES (:handler, :message_id, :type, max(CURRENT_TIMESTAMP, coalesce(:made, CURRENT_TIMESTAMP)),
    :attempts)
ON CONFLICT (handler, message_id) DO NOTHING
RETURNING message_id;
