SELECT handled.message_id
FROM unnest(:ids::VARCHAR(255)[] COLLATE "C") WITH ORDINALITY AS given(ids, place) JOIN LATERAL (SELECT
    outboxkit_inbox.message_id AS message_id
    FROM outboxkit_inbox
    WHERE outboxkit_inbox.handler = :handler AND outboxkit_inbox.message_id = given.ids
    LIMIT 1) AS handled ON true;
