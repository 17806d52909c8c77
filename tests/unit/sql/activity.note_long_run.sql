UPDATE outboxkit_handler
SET long_message_id=:message_id, long_since=:since
WHERE outboxkit_handler.queue = :of_queue AND outboxkit_handler.handler IN (:handler_1, …);
