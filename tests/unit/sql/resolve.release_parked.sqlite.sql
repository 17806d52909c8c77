UPDATE outboxkit_outbox
SET due_at=:now
WHERE outboxkit_outbox."key" IN (:keys, …) AND outboxkit_outbox.destination = :at_destination AND
    outboxkit_outbox.held = 1 AND outboxkit_outbox.due_at = :param_1 AND NOT (EXISTS (SELECT *
        FROM outboxkit_dead_letter AS "before"
        WHERE "before".parked = 1 AND "before"."key" = outboxkit_outbox."key" AND "before".position
            < outboxkit_outbox.position AND "before".destination = outboxkit_outbox.destination));
