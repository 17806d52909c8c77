SELECT o.position, l.pid, a.application_name AS name, a.xact_start AS since
FROM outboxkit_outbox o
JOIN pg_locks l ON l.locktype = 'transactionid' AND l.transactionid = o.xmax AND l.granted
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE o.position = ANY(:positions);
