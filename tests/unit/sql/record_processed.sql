INSERT INTO outboxkit_inbox (handler, message_id, type)
VALUES (:handler, :message_id, :type)
ON CONFLICT DO NOTHING
RETURNING outboxkit_inbox.message_id;
