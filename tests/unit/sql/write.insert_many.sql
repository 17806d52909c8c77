INSERT INTO outboxkit_outbox (message_id, type, payload, key, topic, headers, correlation_id, causation_id, created_at,
    content_type, content_encoding, queue, version, due_at, expires_at, discard_unroutable, dedup, destination, reply)
    SELECT given.message_id, given.type, given.payload, given.key, given.topic, given.headers, given.correlation_id,
    given.causation_id, given.created_at, given.content_type, given.content_encoding, given.queue, given.version,
    given.due_at, given.expires_at, given.discard_unroutable, given.dedup, given.destination, given.reply
FROM unnest(:message_id::VARCHAR(255)[], :type::VARCHAR(255)[], :payload::BYTEA[], :key::VARCHAR(255)[],
    :topic::VARCHAR(255)[], :headers::BYTEA[], :correlation_id::VARCHAR(255)[], :causation_id::VARCHAR(255)[],
    :created_at::TIMESTAMP WITH TIME ZONE[], :content_type::VARCHAR(255)[], :content_encoding::VARCHAR(255)[],
    :queue::VARCHAR(255)[], :version::INTEGER[], :due_at::TIMESTAMP WITH TIME ZONE[], :expires_at::TIMESTAMP WITH TIME
    ZONE[], :discard_unroutable::BOOLEAN[], :dedup::BOOLEAN[], :destination::VARCHAR(255)[], :reply::VARCHAR(255)[])
    WITH ORDINALITY AS given(message_id, type, payload, key, topic, headers, correlation_id, causation_id, created_at,
    content_type, content_encoding, queue, version, due_at, expires_at, discard_unroutable, dedup, destination, reply,
    place)
ORDER BY given.place
ON CONFLICT (message_id)
WHERE dedup DO NOTHING;
