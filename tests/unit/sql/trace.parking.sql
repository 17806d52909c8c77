SELECT outboxkit_dead_letter.id, outboxkit_dead_letter.message_id, outboxkit_dead_letter.reason,
    outboxkit_dead_letter.error
FROM outboxkit_dead_letter
WHERE outboxkit_dead_letter.key = :key AND outboxkit_dead_letter.parked AND outboxkit_dead_letter.destination =
    :destination AND outboxkit_dead_letter.position < :position
ORDER BY outboxkit_dead_letter.key, outboxkit_dead_letter.position
LIMIT 1;
