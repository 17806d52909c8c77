SELECT set_config('outboxkit.lifted', CASE WHEN (CAST(pg_current_xact_id_if_assigned() AS VARCHAR) = :transaction) THEN
    'yes' ELSE current_setting('outboxkit.transaction_of_the_inbox_row_has_ended') END, true) AS set_config_1;
