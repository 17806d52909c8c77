WITH keys AS
(SELECT DISTINCT outboxkit_dead_letter.key AS key, outboxkit_dead_letter.destination AS destination
    FROM outboxkit_dead_letter
    WHERE outboxkit_dead_letter.resolution IS NULL AND (outboxkit_dead_letter.id IN (:id_1, …) OR
        outboxkit_dead_letter.message_id IN (:message_id_1, …)) AND outboxkit_dead_letter.type =
        :type_1 AND outboxkit_dead_letter.key = :key_1 AND outboxkit_dead_letter.reason = :reason_1
        AND outboxkit_dead_letter.side = :side_1 AND outboxkit_dead_letter.destination =
        :destination_1 AND outboxkit_dead_letter.dead_at < :dead_at_1 AND
        outboxkit_dead_letter.dead_at >= :dead_at_2 AND outboxkit_dead_letter.parked)
SELECT count(*) AS count_1, (SELECT count(*) AS count_2
    FROM outboxkit_outbox JOIN keys ON outboxkit_outbox.key = keys.key AND
        outboxkit_outbox.destination = keys.destination
    WHERE outboxkit_outbox.held AND outboxkit_outbox.due_at = :param_1) AS anon_1
FROM keys;
