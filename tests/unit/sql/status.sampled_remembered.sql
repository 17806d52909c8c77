SELECT count(*) AS rows
FROM outboxkit_idempotency AS sample TABLESAMPLE system(:percent);
