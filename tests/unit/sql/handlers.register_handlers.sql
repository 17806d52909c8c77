INSERT INTO outboxkit_handler (handler, queue, function, types, last_seen, retention)
VALUES (:handler, :queue, :function, :types, CURRENT_TIMESTAMP, :retention)
ON CONFLICT (handler, queue) DO UPDATE
SET function = :function, types = :types, last_seen = CURRENT_TIMESTAMP, retention = :retention;
