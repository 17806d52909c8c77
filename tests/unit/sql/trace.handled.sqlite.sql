SELECT outboxkit_inbox.handler, outboxkit_inbox.message_id, outboxkit_inbox.type,
    outboxkit_inbox.processed_at, outboxkit_inbox.attempts, outboxkit_inbox.payload_crc,
    outboxkit_inbox.duration_ms
FROM outboxkit_inbox
WHERE outboxkit_inbox.handler IN (:handlers, …) AND outboxkit_inbox.message_id IN (:ids, …)
LIMIT :limit OFFSET :param_1;
