SELECT chosen.id
FROM outboxkit_dead_letter AS chosen
WHERE chosen.id = ANY (:ids::BIGINT[]) UNION SELECT other.id
FROM outboxkit_dead_letter AS other JOIN (SELECT DISTINCT chosen.key AS key, chosen.destination AS destination
    FROM outboxkit_dead_letter AS chosen
    WHERE chosen.id = ANY (:ids::BIGINT[]) AND chosen.parked) AS keys ON other.key = keys.key AND other.destination =
        keys.destination AND other.parked;
