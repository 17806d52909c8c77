DELETE FROM outboxkit_outbox
WHERE outboxkit_outbox.message_id = :message_id;
