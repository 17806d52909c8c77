SELECT outboxkit_outbox.position, outboxkit_outbox.message_id, outboxkit_outbox.type,
    outboxkit_outbox.topic, outboxkit_outbox.key, outboxkit_outbox.payload,
    outboxkit_outbox.headers, outboxkit_outbox.correlation_id, outboxkit_outbox.causation_id,
    outboxkit_outbox.content_type, outboxkit_outbox.content_encoding, outboxkit_outbox.created_at,
    outboxkit_outbox.attempts
FROM outboxkit_outbox
WHERE outboxkit_outbox.due_at IS NULL
ORDER BY outboxkit_outbox.position
LIMIT :param_1
FOR UPDATE SKIP LOCKED;
