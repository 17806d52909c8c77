SELECT outboxkit_inbox.handler, outboxkit_inbox.message_id, outboxkit_inbox.payload_crc
FROM outboxkit_inbox
WHERE outboxkit_inbox.handler IN (:handlers, …) AND outboxkit_inbox.message_id IN (:ids, …);
