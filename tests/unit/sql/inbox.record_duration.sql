UPDATE outboxkit_inbox
SET duration_ms=:milliseconds
WHERE outboxkit_inbox.handler = :at_handler AND outboxkit_inbox.message_id = :at_message_id;
