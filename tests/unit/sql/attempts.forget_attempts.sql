DELETE FROM outboxkit_attempt
WHERE outboxkit_attempt.queue = :queue AND outboxkit_attempt.message_id = ANY (:ids::VARCHAR(255)[]);
