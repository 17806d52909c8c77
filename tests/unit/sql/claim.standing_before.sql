SELECT found.key, found.ready_at, found.held_at, found.due_at, found.parked_at
FROM (SELECT wanted.key AS key, anon_1.position AS ready_at, anon_2.position AS held_at,
    anon_2.due_at AS due_at, (SELECT min(outboxkit_dead_letter.position) AS min_1
        FROM outboxkit_dead_letter
        WHERE outboxkit_dead_letter.key = wanted.key AND outboxkit_dead_letter.destination =
            :destination AND outboxkit_dead_letter.parked) AS parked_at
    FROM unnest(:keys::VARCHAR[], :uptos::BIGINT[]) AS wanted(key, upto) LEFT OUTER JOIN LATERAL
        (SELECT outboxkit_outbox.position AS position
        FROM outboxkit_outbox
        WHERE outboxkit_outbox.key = wanted.key AND outboxkit_outbox.destination = :destination AND
            outboxkit_outbox.position < wanted.upto AND outboxkit_outbox.position != ALL
            (:mine::BIGINT[]) AND outboxkit_outbox.due_at IS NULL AND outboxkit_outbox.position >
            :floor
        ORDER BY outboxkit_outbox.position
        LIMIT 1) AS anon_1 ON true LEFT OUTER JOIN LATERAL (SELECT outboxkit_outbox.position AS
            position, outboxkit_outbox.due_at AS due_at
        FROM outboxkit_outbox
        WHERE outboxkit_outbox.key = wanted.key AND outboxkit_outbox.destination = :destination AND
            outboxkit_outbox.position < wanted.upto AND outboxkit_outbox.position != ALL
            (:mine::BIGINT[]) AND outboxkit_outbox.held
        ORDER BY outboxkit_outbox.position
        LIMIT 1) AS anon_2 ON true) AS found
WHERE found.ready_at IS NOT NULL OR found.held_at IS NOT NULL OR found.parked_at IS NOT NULL;
