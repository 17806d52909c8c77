INSERT INTO outboxkit_outbox (message_id, type, payload, key, topic, headers, correlation_id, causation_id, created_at,
    content_type, content_encoding, queue, version) SELECT :message_id AS message_id, :type AS type, :payload AS
    payload, :key AS key, :topic AS topic, :headers AS headers, :correlation_id AS correlation_id, :causation_id AS
    causation_id, :created_at AS created_at, :content_type AS content_type, :content_encoding AS content_encoding,
    :queue AS queue, :version AS version
WHERE EXISTS (SELECT *
    FROM outboxkit_outbox
    WHERE outboxkit_outbox.position = :at_position);
