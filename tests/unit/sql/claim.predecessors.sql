SELECT predecessor.key, predecessor.ready_at, predecessor.held_at, predecessor.due_at, predecessor.parked_at
FROM (SELECT batch.key AS key, anon_1.position AS ready_at, anon_2.position AS held_at, anon_2.due_at AS due_at, (SELECT
    min(outboxkit_dead_letter.position) AS min_1
        FROM outboxkit_dead_letter
        WHERE outboxkit_dead_letter.key = batch.key AND outboxkit_dead_letter.destination = :destination AND
            outboxkit_dead_letter.parked) AS parked_at
    FROM unnest(:keys::VARCHAR[], :last_positions::BIGINT[]) AS batch(key, upto) LEFT OUTER JOIN LATERAL (SELECT
        outboxkit_outbox.position AS position
        FROM outboxkit_outbox
        WHERE outboxkit_outbox.key = batch.key AND outboxkit_outbox.destination = :destination AND
            (outboxkit_outbox.position NOT IN (SELECT unnest(:own_positions::BIGINT[]) AS unnest_1)) AND
            outboxkit_outbox.due_at IS NULL AND (outboxkit_outbox.position + 0) > :floor AND (outboxkit_outbox.position
            + 0) < batch.upto
        ORDER BY (outboxkit_outbox.position + 0)
        LIMIT 1) AS anon_1 ON true LEFT OUTER JOIN LATERAL (SELECT outboxkit_outbox.position AS position,
            outboxkit_outbox.due_at AS due_at
        FROM outboxkit_outbox
        WHERE outboxkit_outbox.key = batch.key AND outboxkit_outbox.destination = :destination AND
            (outboxkit_outbox.position NOT IN (SELECT unnest(:own_positions::BIGINT[]) AS unnest_1)) AND
            outboxkit_outbox.held AND outboxkit_outbox.position < batch.upto
        ORDER BY outboxkit_outbox.position
        LIMIT 1) AS anon_2 ON true) AS predecessor
WHERE predecessor.ready_at IS NOT NULL OR predecessor.held_at IS NOT NULL OR predecessor.parked_at IS NOT NULL;
