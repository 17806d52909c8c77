INSERT INTO outboxkit_dead_letter (side, queue, handler, message_id, type, topic, key, payload, headers, correlation_id,
    causation_id, content_type, content_encoding, version, created_at, reason, error, attempts, dead_at,
    first_failed_at, traceback)
VALUES (:side, :queue, :handler, :message_id, :type, :topic, :key, :payload, :headers, :correlation_id, :causation_id,
    :content_type, :content_encoding, :version, :created_at, :reason, :error, :attempts, CURRENT_TIMESTAMP,
    :first_failed_at, :traceback)
ON CONFLICT DO NOTHING;
