SELECT set_config('outboxkit.guard', CASE WHEN (current_setting('outboxkit.guard', true) = 'on')
    THEN '' ELSE current_setting('outboxkit.transaction_of_the_inbox_row_has_ended') END, true) AS
    set_config_1;
