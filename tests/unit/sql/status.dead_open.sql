SELECT first.side, first.reason, count(*) AS rows
FROM (SELECT outboxkit_dead_letter.side AS side, outboxkit_dead_letter.reason AS reason
    FROM outboxkit_dead_letter
    WHERE outboxkit_dead_letter.resolution IS NULL
    ORDER BY outboxkit_dead_letter.dead_at, outboxkit_dead_letter.id
    LIMIT :limit) AS first
GROUP BY first.side, first.reason
ORDER BY first.side, first.reason;
