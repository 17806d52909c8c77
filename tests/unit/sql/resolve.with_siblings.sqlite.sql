SELECT chosen.id
FROM outboxkit_dead_letter AS chosen
WHERE chosen.id IN (:ids, …) UNION SELECT other.id
FROM outboxkit_dead_letter AS other
WHERE other."key" IN (SELECT chosen."key"
    FROM outboxkit_dead_letter AS chosen
    WHERE chosen.id IN (:ids, …) AND chosen.parked = 1) AND other.parked = 1;
