SELECT outboxkit_outbox.position, substr(md5(outboxkit_outbox.payload), 1, 12) AS substr_1
FROM outboxkit_outbox
WHERE outboxkit_outbox.position = ANY (:positions::BIGINT[]);
