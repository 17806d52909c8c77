INSERT INTO outboxkit_inbox (handler, message_id, type, attempts, processed_at) SELECT
    given.handlers, given.message_ids, given.types, given.attempts, greatest(CURRENT_TIMESTAMP,
    given.mades) AS greatest_1
FROM unnest(:handlers::VARCHAR[], :message_ids::VARCHAR[], :types::VARCHAR[], :attempts::INTEGER[],
    :mades::TIMESTAMP WITH TIME ZONE[]) WITH ORDINALITY AS given(handlers, message_ids, types,
    attempts, mades, place)
ORDER BY given.place
ON CONFLICT (handler, message_id) DO NOTHING
RETURNING outboxkit_inbox.handler, outboxkit_inbox.message_id;
