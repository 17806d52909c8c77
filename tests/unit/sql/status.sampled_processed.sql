SELECT sample.handler, count(*) AS rows
FROM outboxkit_inbox AS sample TABLESAMPLE system(:percent)
GROUP BY sample.handler
ORDER BY sample.handler;
