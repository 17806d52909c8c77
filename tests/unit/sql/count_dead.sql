SELECT outboxkit_dead_letter.side, outboxkit_dead_letter.reason, count(*) AS count_1
FROM outboxkit_dead_letter
GROUP BY outboxkit_dead_letter.side, outboxkit_dead_letter.reason
ORDER BY outboxkit_dead_letter.side, outboxkit_dead_letter.reason;
