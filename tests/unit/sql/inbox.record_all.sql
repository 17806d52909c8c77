INSERT INTO outboxkit_inbox (handler, message_id, type, attempts, processed_at) SELECT
    given.handler, given.message_id, given.type, given.attempts, greatest(CURRENT_TIMESTAMP,
    given.made) AS greatest_1
FROM unnest(:handlers::VARCHAR[], :message_ids::VARCHAR[], :types::VARCHAR[], :attempts::INTEGER[],
    :mades::TIMESTAMP WITH TIME ZONE[]) WITH ORDINALITY AS given(handler, message_id, type,
    attempts, made, place)
ORDER BY given.place
ON CONFLICT (handler, message_id) DO NOTHING
RETURNING outboxkit_inbox.handler, outboxkit_inbox.message_id;
