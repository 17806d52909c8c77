SELECT (SELECT min(outboxkit_outbox.position) AS min_1
    FROM outboxkit_outbox) AS anon_1, (SELECT max(outboxkit_outbox.position) AS max_1
    FROM outboxkit_outbox) AS anon_2;
