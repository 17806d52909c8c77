SELECT sample.type, sample.destination, CASE WHEN (sample.due_at IS NULL) THEN 'ready' WHEN
    (sample.due_at = :parked_until) THEN 'parked' WHEN sample.held THEN 'held' ELSE 'delayed' END AS
    state, count(*) FILTER (WHERE sample.attempts > 0) AS failed, count(*) AS rows
FROM outboxkit_outbox AS sample TABLESAMPLE system(:percent)
GROUP BY sample.type, sample.destination, state;
