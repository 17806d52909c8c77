WITH wanted AS
(SELECT chosen.id AS id
    FROM outboxkit_dead_letter AS chosen
    WHERE chosen.id IN (:ids, …) UNION SELECT other.id AS id
    FROM outboxkit_dead_letter AS other
    WHERE other."key" IN (SELECT chosen."key"
        FROM outboxkit_dead_letter AS chosen
        WHERE chosen.id IN (:ids, …) AND chosen.parked = 1) AND other.parked = 1)
SELECT outboxkit_dead_letter.id, outboxkit_dead_letter.position, outboxkit_dead_letter."key",
    outboxkit_dead_letter.parked
FROM outboxkit_dead_letter
WHERE outboxkit_dead_letter.resolution IS NULL AND outboxkit_dead_letter.id IN (SELECT wanted.id
    FROM wanted)
ORDER BY outboxkit_dead_letter.id;
