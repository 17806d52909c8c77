SELECT outboxkit_outbox.type, outboxkit_outbox.destination, count(*) AS rows, min(outboxkit_outbox.due_at) AS first,
    max(outboxkit_outbox.due_at) AS last, max(outboxkit_outbox.position) AS upto
FROM outboxkit_outbox
WHERE outboxkit_outbox.due_at IS NOT NULL AND outboxkit_outbox.due_at < :parked_until AND outboxkit_outbox.message_id IN
    (:message_id_1, …) AND outboxkit_outbox.type = :type_1 AND outboxkit_outbox.key = :key_1 AND outboxkit_outbox.due_at
    > :due_at_1 AND outboxkit_outbox.due_at > :now
GROUP BY outboxkit_outbox.type, outboxkit_outbox.destination
ORDER BY count(*) DESC, outboxkit_outbox.type, outboxkit_outbox.destination;
