INSERT INTO outboxkit_inbox (handler, message_id, type) SELECT '', '', ''
WHERE false;
