SELECT outboxkit_dead_letter.type, outboxkit_dead_letter.payload, outboxkit_dead_letter.headers,
    outboxkit_dead_letter.content_type, outboxkit_dead_letter.content_encoding, outboxkit_dead_letter.version
FROM outboxkit_dead_letter
WHERE outboxkit_dead_letter.id = :id;
