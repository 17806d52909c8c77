SELECT outboxkit_attempt.queue, outboxkit_attempt.message_id, outboxkit_attempt.starts, outboxkit_attempt.failures,
    outboxkit_attempt.first_failed_at, outboxkit_attempt.touched_at, outboxkit_attempt.handler, outboxkit_attempt.type,
    outboxkit_attempt.key, outboxkit_attempt.attempt, outboxkit_attempt.error, outboxkit_attempt.next_at
FROM outboxkit_attempt
WHERE outboxkit_attempt.queue = ANY (:queues::VARCHAR(255)[]) AND outboxkit_attempt.message_id = ANY
    (:ids::VARCHAR(255)[])
LIMIT :limit;
