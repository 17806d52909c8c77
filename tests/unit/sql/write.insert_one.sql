INSERT INTO outboxkit_outbox (message_id, type, topic, key, payload, headers, correlation_id, causation_id,
    content_type, content_encoding, version, created_at, queue, due_at, expires_at, discard_unroutable, dedup,
    destination, reply)
VALUES (:message_id, :type, :topic, :key, :payload, :headers, :correlation_id, :causation_id, :content_type,
    :content_encoding, :version, :created_at, :queue, :due_at, :expires_at, :discard_unroutable, :dedup, :destination,
    :reply)
ON CONFLICT (message_id)
WHERE dedup DO NOTHING;
