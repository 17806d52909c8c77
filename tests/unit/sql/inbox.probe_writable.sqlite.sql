INSERT INTO outboxkit_inbox (handler, message_id, type) SELECT '', '', ''
WHERE 0 = 1;
