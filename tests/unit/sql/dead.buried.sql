SELECT outboxkit_dead_letter.handler
FROM outboxkit_dead_letter
WHERE outboxkit_dead_letter.message_id = :message_id AND outboxkit_dead_letter.queue = :queue AND
    outboxkit_dead_letter.side = 'inbox' AND outboxkit_dead_letter.resolution IS NULL;
