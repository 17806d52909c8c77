SELECT first.queue, first.handler, first.error, min(first.type) AS type, max(first.attempt) AS attempt,
    min(first.next_at) AS next_at, min(first.message_id) AS message_id, count(*) AS rows
FROM (SELECT outboxkit_attempt.queue AS queue, outboxkit_attempt.handler AS handler, outboxkit_attempt.error AS error,
    outboxkit_attempt.type AS type, outboxkit_attempt.attempt AS attempt, CASE WHEN (outboxkit_attempt.next_at <
    :param_1) THEN :param_1 WHEN (outboxkit_attempt.next_at > :param_2) THEN :param_2 ELSE outboxkit_attempt.next_at END
    AS next_at, outboxkit_attempt.message_id AS message_id
    FROM outboxkit_attempt
    WHERE outboxkit_attempt.error IS NOT NULL
    ORDER BY outboxkit_attempt.queue, outboxkit_attempt.message_id
    LIMIT :limit) AS first
GROUP BY first.queue, first.handler, first.error
ORDER BY rows DESC, first.queue, first.handler, first.error
LIMIT :most;
