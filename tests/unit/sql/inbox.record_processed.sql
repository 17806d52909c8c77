INSERT INTO outboxkit_inbox (handler, message_id, type)
VALUES (:handler, :message_id, :type)
ON CONFLICT (handler, message_id) DO NOTHING
RETURNING outboxkit_inbox.message_id;
