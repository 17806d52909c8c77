SELECT outboxkit_inbox.handler, outboxkit_inbox.message_id, outboxkit_inbox.type, outboxkit_inbox.processed_at,
    outboxkit_inbox.attempts, outboxkit_inbox.payload_crc
FROM outboxkit_inbox
WHERE outboxkit_inbox.handler = ANY (:handlers::VARCHAR(255)[]) AND outboxkit_inbox.message_id = ANY
    (:ids::VARCHAR(255)[] COLLATE "C")
LIMIT :limit;
