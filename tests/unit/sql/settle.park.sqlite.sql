UPDATE outboxkit_outbox
SET due_at=:due_at, held=:held
WHERE outboxkit_outbox.position IN (:positions, …) AND outboxkit_outbox."key" IN (SELECT
    outboxkit_dead_letter."key"
    FROM outboxkit_dead_letter
    WHERE outboxkit_dead_letter.parked = 1 AND outboxkit_dead_letter."key" IN (SELECT
        outboxkit_outbox."key"
        FROM outboxkit_outbox
        WHERE outboxkit_outbox.position IN (:positions, …)) AND outboxkit_dead_letter.destination =
            :of_destination);
