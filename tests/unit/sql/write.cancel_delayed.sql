DELETE FROM outboxkit_outbox
WHERE outboxkit_outbox.message_id = :message_id AND outboxkit_outbox.due_at IS NOT NULL;
