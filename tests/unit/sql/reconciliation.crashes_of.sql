SELECT outboxkit_attempt.message_id
FROM outboxkit_attempt
WHERE outboxkit_attempt.queue = ANY (:queues::VARCHAR(255)[]) AND outboxkit_attempt.message_id = ANY
    (:ids::VARCHAR(255)[]);
