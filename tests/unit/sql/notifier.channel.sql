SELECT 'outboxkit_' || 'outboxkit_outbox'::regclass::oid AS channel, current_setting('max_prepared_transactions') = '0'
    AS notifies;
