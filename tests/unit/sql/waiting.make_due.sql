UPDATE outboxkit_outbox
SET due_at=:now
WHERE outboxkit_outbox.position = ANY (:positions::BIGINT[]) AND outboxkit_outbox.due_at IS NOT NULL AND
    outboxkit_outbox.due_at < :parked_until AND outboxkit_outbox.message_id IN (:message_id_1, …) AND
    outboxkit_outbox.type = :type_1 AND outboxkit_outbox.key = :key_1 AND outboxkit_outbox.due_at > :due_at_1 AND
    outboxkit_outbox.due_at > :now;
