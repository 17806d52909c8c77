DELETE FROM outboxkit_outbox
WHERE outboxkit_outbox.position = ANY (:positions::BIGINT[]);
