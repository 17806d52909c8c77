INSERT INTO outboxkit_handler (handler, queue, function, last_seen)
VALUES (:handler, :queue, :function, CURRENT_TIMESTAMP)
ON CONFLICT (handler, queue) DO UPDATE
SET function = :function, last_seen = CURRENT_TIMESTAMP;
