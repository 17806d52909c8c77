SELECT DISTINCT outboxkit_inbox.handler, outboxkit_inbox.type
FROM outboxkit_inbox
WHERE outboxkit_inbox.message_id BETWEEN :first_id AND :last_id;
