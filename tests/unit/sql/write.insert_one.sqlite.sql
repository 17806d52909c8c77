INSERT INTO outboxkit_outbox (position, message_id, type, topic, "key", payload, headers,
    correlation_id, causation_id, content_type, content_encoding, created_at, due_at, attempts,
    last_error, held, first_failed_at, expires_at, discard_unroutable, dedup)
VALUES (:position, :message_id, :type, :topic, :key, :payload, :headers, :correlation_id,
    :causation_id, :content_type, :content_encoding, :created_at, :due_at, :attempts, :last_error,
    :held, :first_failed_at, :expires_at, :discard_unroutable, :dedup);
