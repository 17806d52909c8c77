INSERT INTO outboxkit_dead_letter (side, position, message_id, type, topic, key, payload, headers, correlation_id,
    causation_id, content_type, content_encoding, version, created_at, queue, destination, reply, discard_unroutable,
    reason, error, attempts, parked, first_failed_at, dead_at) SELECT 'outbox' AS side, outboxkit_outbox.position,
    outboxkit_outbox.message_id, outboxkit_outbox.type, outboxkit_outbox.topic, outboxkit_outbox.key,
    outboxkit_outbox.payload, outboxkit_outbox.headers, outboxkit_outbox.correlation_id, outboxkit_outbox.causation_id,
    outboxkit_outbox.content_type, outboxkit_outbox.content_encoding, outboxkit_outbox.version,
    outboxkit_outbox.created_at, outboxkit_outbox.queue, outboxkit_outbox.destination, outboxkit_outbox.reply,
    outboxkit_outbox.discard_unroutable, :reason AS reason, :error AS error, outboxkit_outbox.attempts + :failures AS
    attempts, :parked AS parked, coalesce(outboxkit_outbox.first_failed_at, :now) AS first_failed_at, :now AS dead_at
FROM outboxkit_outbox
WHERE outboxkit_outbox.position = ANY (:positions::BIGINT[]);
