SELECT EXISTS (SELECT *
    FROM outboxkit_inbox
    WHERE outboxkit_inbox.handler = :handler) AS anon_1;
