SELECT count(*) AS count_1
FROM (SELECT outboxkit_inbox.message_id AS message_id
    FROM outboxkit_inbox
    WHERE outboxkit_inbox.handler = :handler
    ORDER BY outboxkit_inbox.message_id
    LIMIT :limit OFFSET :param_1) AS first;
