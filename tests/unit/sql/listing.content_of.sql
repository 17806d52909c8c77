SELECT outboxkit_outbox.type, outboxkit_outbox.payload, outboxkit_outbox.headers, outboxkit_outbox.content_type,
    outboxkit_outbox.content_encoding, outboxkit_outbox.version
FROM outboxkit_outbox
WHERE outboxkit_outbox.position = :position;
