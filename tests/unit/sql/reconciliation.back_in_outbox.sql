SELECT outboxkit_outbox.message_id
FROM outboxkit_outbox
WHERE outboxkit_outbox.message_id = ANY (:ids::VARCHAR(255)[]);
