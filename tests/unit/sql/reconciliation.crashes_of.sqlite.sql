SELECT outboxkit_attempt.message_id
FROM outboxkit_attempt
WHERE outboxkit_attempt.queue IN (:queues, …) AND outboxkit_attempt.message_id IN (:ids, …);
