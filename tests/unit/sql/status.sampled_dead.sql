SELECT sample.side, sample.reason, sample.resolution, count(*) AS rows
FROM outboxkit_dead_letter AS sample TABLESAMPLE system(:percent)
GROUP BY sample.side, sample.reason, sample.resolution
ORDER BY sample.side, sample.reason, sample.resolution;
