SELECT sized.position, sized.payload
FROM (SELECT outboxkit_outbox.position AS position, outboxkit_outbox.payload AS payload,
    sum(length(outboxkit_outbox.payload)) OVER (ORDER BY outboxkit_outbox.position) - length(outboxkit_outbox.payload)
    AS before
    FROM outboxkit_outbox
    WHERE outboxkit_outbox.position = ANY (:positions::BIGINT[])) AS sized
WHERE sized.before < :budget;
