SELECT count(*) AS rows
FROM outboxkit_published AS sample TABLESAMPLE system(:percent);
