SELECT predecessor."key", NULL AS ready_at, max(predecessor.held_at) AS held_at,
    max(predecessor.due_at) AS due_at, max(predecessor.parked_at) AS parked_at
FROM (SELECT first."key" AS "key", NULL AS ready_at, first.held_at AS held_at,
    outboxkit_outbox.due_at AS due_at, NULL AS parked_at
    FROM (SELECT outboxkit_outbox."key" AS "key", min(outboxkit_outbox.position) AS held_at
        FROM outboxkit_outbox
        WHERE outboxkit_outbox.held = 1 AND outboxkit_outbox."key" IN (:keys, …) AND
            outboxkit_outbox.destination = :destination AND (outboxkit_outbox.position NOT IN
            (:own_positions, …))
        GROUP BY outboxkit_outbox."key") AS first JOIN outboxkit_outbox ON outboxkit_outbox.position
            = first.held_at UNION ALL SELECT parked."key" AS "key", NULL AS anon_1, NULL AS anon__1,
            NULL AS anon__2, parked.parked_at AS parked_at
    FROM (SELECT outboxkit_dead_letter."key" AS "key", min(outboxkit_dead_letter.position) AS
        parked_at
        FROM outboxkit_dead_letter
        WHERE outboxkit_dead_letter.parked = 1 AND outboxkit_dead_letter."key" IN (:keys, …) AND
            outboxkit_dead_letter.destination = :destination
        GROUP BY outboxkit_dead_letter."key") AS parked) AS predecessor
GROUP BY predecessor."key";
