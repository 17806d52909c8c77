WITH parking AS
(SELECT outboxkit_dead_letter.key AS key, outboxkit_dead_letter.position AS position
    FROM outboxkit_dead_letter
    WHERE outboxkit_dead_letter.parked AND outboxkit_dead_letter.destination = :of_destination AND
        outboxkit_dead_letter.key IN (SELECT outboxkit_outbox.key
        FROM outboxkit_outbox
        WHERE outboxkit_outbox.position = ANY (:positions::BIGINT[])) FOR SHARE SKIP LOCKED)
UPDATE outboxkit_outbox
SET due_at=CASE WHEN (EXISTS (SELECT *
        FROM parking
        WHERE parking.key = outboxkit_outbox.key AND parking.position < outboxkit_outbox.position)) THEN :param_1 ELSE
            :due END, held=:held
WHERE outboxkit_outbox.position = ANY (:positions::BIGINT[]) AND (EXISTS (SELECT outboxkit_dead_letter.key
        FROM outboxkit_dead_letter
        WHERE outboxkit_dead_letter.parked AND outboxkit_dead_letter.destination = :of_destination AND
            outboxkit_dead_letter.key = outboxkit_outbox.key AND outboxkit_dead_letter.position <
            outboxkit_outbox.position));
