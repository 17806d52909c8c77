INSERT INTO outboxkit_dead_letter (side, queue, handler, message_id, type, topic, key, payload,
    headers, correlation_id, causation_id, content_type, content_encoding, created_at, reason,
    error, attempts)
VALUES (:side, :queue, :handler, :message_id, :type, :topic, :key, :payload, :headers,
    :correlation_id, :causation_id, :content_type, :content_encoding, :created_at, :reason, :error,
    :attempts)
RETURNING outboxkit_dead_letter.id;
