DELETE FROM outboxkit_attempt
WHERE (outboxkit_attempt.queue, outboxkit_attempt.message_id) IN (SELECT outboxkit_attempt.queue,
    outboxkit_attempt.message_id
    FROM outboxkit_attempt
    WHERE outboxkit_attempt.touched_at < :touched_at_1
    LIMIT :param_1);
