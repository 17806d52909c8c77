INSERT INTO outboxkit_published (published_at, position, message_id, type, topic, key, payload, headers, correlation_id,
    causation_id, content_type, content_encoding, version, created_at, queue, destination, reply) SELECT
    statement_timestamp() AS published_at, outboxkit_outbox.position, outboxkit_outbox.message_id,
    outboxkit_outbox.type, outboxkit_outbox.topic, outboxkit_outbox.key, outboxkit_outbox.payload,
    outboxkit_outbox.headers, outboxkit_outbox.correlation_id, outboxkit_outbox.causation_id,
    outboxkit_outbox.content_type, outboxkit_outbox.content_encoding, outboxkit_outbox.version,
    outboxkit_outbox.created_at, outboxkit_outbox.queue, outboxkit_outbox.destination, outboxkit_outbox.reply
FROM outboxkit_outbox
WHERE outboxkit_outbox.position = ANY (:positions::BIGINT[]);
