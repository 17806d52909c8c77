UPDATE outboxkit_handler
SET last_seen=:last_seen
WHERE outboxkit_handler.queue = :of_queue AND (outboxkit_handler.handler NOT IN (:handler_1, …)) AND
    outboxkit_handler.last_seen > :last_seen_1;
