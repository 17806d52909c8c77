SELECT outboxkit_attempt.queue, outboxkit_attempt.message_id, outboxkit_attempt.starts,
    outboxkit_attempt.failures, outboxkit_attempt.first_failed_at, outboxkit_attempt.touched_at
FROM outboxkit_attempt
WHERE outboxkit_attempt.queue IN (:queues, …) AND outboxkit_attempt.message_id IN (:ids, …)
LIMIT :limit OFFSET :param_1;
