INSERT INTO outboxkit_outbox (message_id, type, payload, key, topic, headers, correlation_id,
    causation_id, created_at, content_type, content_encoding, due_at, expires_at,
    discard_unroutable, dedup) SELECT given.message_id, given.type, given.payload, given.key,
    given.topic, given.headers, given.correlation_id, given.causation_id, given.created_at,
    given.content_type, given.content_encoding, given.due_at, given.expires_at,
    given.discard_unroutable, given.dedup
FROM unnest(CAST(:message_id::VARCHAR(255)[] AS VARCHAR(255)[]), CAST(:type::VARCHAR(255)[] AS
    VARCHAR(255)[]), CAST(:payload::BYTEA[] AS BYTEA[]), CAST(:key::VARCHAR(255)[] AS
    VARCHAR(255)[]), CAST(:topic::VARCHAR(255)[] AS VARCHAR(255)[]), CAST(:headers::BYTEA[] AS
    BYTEA[]), CAST(:correlation_id::VARCHAR(255)[] AS VARCHAR(255)[]),
    CAST(:causation_id::VARCHAR(255)[] AS VARCHAR(255)[]), CAST(:created_at::TIMESTAMP WITH TIME
    ZONE[] AS TIMESTAMP WITH TIME ZONE[]), CAST(:content_type::VARCHAR(255)[] AS VARCHAR(255)[]),
    CAST(:content_encoding::VARCHAR(255)[] AS VARCHAR(255)[]), CAST(:due_at::TIMESTAMP WITH TIME
    ZONE[] AS TIMESTAMP WITH TIME ZONE[]), CAST(:expires_at::TIMESTAMP WITH TIME ZONE[] AS TIMESTAMP
    WITH TIME ZONE[]), CAST(:discard_unroutable::BOOLEAN[] AS BOOLEAN[]), CAST(:dedup::BOOLEAN[] AS
    BOOLEAN[])) WITH ORDINALITY AS given(message_id, type, payload, key, topic, headers,
    correlation_id, causation_id, created_at, content_type, content_encoding, due_at, expires_at,
    discard_unroutable, dedup, place)
ORDER BY given.place
ON CONFLICT (message_id)
WHERE dedup DO NOTHING;
