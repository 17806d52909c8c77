UPDATE outboxkit_outbox
SET due_at=:now
WHERE outboxkit_outbox.key = ANY (:keys::VARCHAR(255)[]) AND outboxkit_outbox.destination = :at_destination AND
    outboxkit_outbox.held AND outboxkit_outbox.due_at = :param_1 AND NOT (EXISTS (SELECT *
        FROM outboxkit_dead_letter AS before
        WHERE before.parked AND before.key = outboxkit_outbox.key AND before.position < outboxkit_outbox.position AND
            before.destination = outboxkit_outbox.destination));
