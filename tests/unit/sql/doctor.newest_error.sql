SELECT first.error
FROM (SELECT outboxkit_dead_letter.id AS id, outboxkit_dead_letter.error AS error
    FROM outboxkit_dead_letter
    WHERE outboxkit_dead_letter.resolution IS NULL
    ORDER BY outboxkit_dead_letter.id DESC
    LIMIT :limit) AS first
WHERE (first.error LIKE '%' || :text || '%')
ORDER BY first.id DESC
LIMIT 1;
