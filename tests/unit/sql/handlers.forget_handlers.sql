DELETE FROM outboxkit_handler
WHERE outboxkit_handler.queue = :of_queue AND outboxkit_handler.handler IN (:handler_1, …);
