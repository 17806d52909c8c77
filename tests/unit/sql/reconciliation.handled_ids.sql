SELECT outboxkit_inbox.message_id
FROM outboxkit_inbox
WHERE outboxkit_inbox.handler = :handler AND outboxkit_inbox.message_id = ANY (:ids::VARCHAR(255)[]
    COLLATE "C");
