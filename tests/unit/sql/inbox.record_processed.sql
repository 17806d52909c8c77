INSERT INTO outboxkit_inbox (handler, message_id, type, processed_at, attempts)
VALUES (:handler, :message_id, :type, greatest(CURRENT_TIMESTAMP, :made), :attempts)
ON CONFLICT (handler, message_id) DO NOTHING
RETURNING outboxkit_inbox.message_id;
