SELECT count(*) AS count_1
FROM outboxkit_published AS sample TABLESAMPLE system(:percent);
