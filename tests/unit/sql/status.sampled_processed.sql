SELECT sample.handler, count(*) AS count_1
FROM outboxkit_inbox AS sample TABLESAMPLE system(:percent)
GROUP BY sample.handler
ORDER BY sample.handler;
