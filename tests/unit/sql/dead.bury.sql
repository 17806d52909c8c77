INSERT INTO outboxkit_dead_letter (side, queue, handler, message_id, type, topic, key, payload,
    headers, correlation_id, causation_id, content_type, content_encoding, created_at, reason,
    error, attempts, position, parked, first_failed_at, discard_unroutable, resolution, resolved_at,
    resolved_by)
VALUES (:side, :queue, :handler, :message_id, :type, :topic, :key, :payload, :headers,
    :correlation_id, :causation_id, :content_type, :content_encoding, :created_at, :reason, :error,
    :attempts, :position, :parked, :first_failed_at, :discard_unroutable, :resolution, :resolved_at,
    :resolved_by)
RETURNING outboxkit_dead_letter.id;
