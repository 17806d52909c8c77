SELECT outboxkit_inbox.message_id, outboxkit_inbox.handler
FROM outboxkit_inbox
WHERE outboxkit_inbox.handler IN (:handlers, …) AND outboxkit_inbox.message_id BETWEEN :first_id AND
    :last_id
ORDER BY outboxkit_inbox.message_id;
