SELECT outboxkit_outbox.position, outboxkit_outbox.type, outboxkit_outbox.destination, CASE WHEN
    (outboxkit_outbox.due_at < :param_1) THEN :param_1 WHEN (outboxkit_outbox.due_at > :param_2) THEN :param_2 ELSE
    outboxkit_outbox.due_at END AS due_at
FROM outboxkit_outbox
WHERE outboxkit_outbox.due_at IS NOT NULL AND outboxkit_outbox.due_at < :parked_until AND outboxkit_outbox.message_id IN
    (:message_id_1, …) AND outboxkit_outbox.type = :type_1 AND outboxkit_outbox.key = :key_1 AND outboxkit_outbox.due_at
    > :due_at_1 AND outboxkit_outbox.due_at > :now;
