SELECT chosen.id
FROM outboxkit_dead_letter AS chosen
WHERE chosen.id = ANY (:ids::BIGINT[]) UNION SELECT other.id
FROM outboxkit_dead_letter AS other
WHERE other.key IN (SELECT chosen.key
    FROM outboxkit_dead_letter AS chosen
    WHERE chosen.id = ANY (:ids::BIGINT[]) AND chosen.parked) AND other.parked;
