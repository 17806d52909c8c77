SELECT found."key", NULL AS ready_at, min(found.held_at) AS held_at, max(found.due_at) AS due_at,
    min(found.parked_at) AS parked_at
FROM (SELECT outboxkit_outbox."key" AS "key", outboxkit_outbox.position AS held_at,
    outboxkit_outbox.due_at AS due_at, NULL AS parked_at
    FROM outboxkit_outbox
    WHERE outboxkit_outbox.held = 1 AND outboxkit_outbox."key" IN (:keys, …) AND
        (outboxkit_outbox.position NOT IN (:mine, …)) UNION ALL SELECT outboxkit_dead_letter."key"
        AS "key", NULL AS anon_1, NULL AS anon__1, outboxkit_dead_letter.position AS position
    FROM outboxkit_dead_letter
    WHERE outboxkit_dead_letter.parked = 1 AND outboxkit_dead_letter."key" IN (:keys, …)) AS found
GROUP BY found."key";
