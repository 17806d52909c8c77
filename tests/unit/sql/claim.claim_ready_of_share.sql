SELECT outboxkit_outbox.position, outboxkit_outbox.attempts, outboxkit_outbox.message_id, outboxkit_outbox.type, CASE
    WHEN (length(outboxkit_outbox.payload) <= :payload_limit) THEN outboxkit_outbox.payload END AS payload,
    outboxkit_outbox.key, outboxkit_outbox.topic, outboxkit_outbox.headers, outboxkit_outbox.correlation_id,
    outboxkit_outbox.causation_id, outboxkit_outbox.created_at, outboxkit_outbox.content_type,
    outboxkit_outbox.content_encoding, outboxkit_outbox.queue, outboxkit_outbox.version, outboxkit_outbox.expires_at,
    outboxkit_outbox.discard_unroutable, outboxkit_outbox.due_at, outboxkit_outbox.reply
FROM outboxkit_outbox
WHERE outboxkit_outbox.due_at IS NULL AND (outboxkit_outbox.destination, outboxkit_outbox.position) > (:destination,
    :floor) AND outboxkit_outbox.destination <= :destination AND (outboxkit_outbox.key IS NULL OR
    (hashtext(outboxkit_outbox.key) & 2147483647) % :relays = :rank AND (outboxkit_outbox.key NOT IN (SELECT
    unnest(:except_keys::VARCHAR[]) AS unnest_1))) AND (outboxkit_outbox.destination, outboxkit_outbox.position) <=
    (:destination, :last)
ORDER BY outboxkit_outbox.destination, outboxkit_outbox.position
LIMIT :limit
FOR UPDATE SKIP LOCKED;
