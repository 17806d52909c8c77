SELECT set_config('statement_timeout', '4s', true) AS set_config_1, set_config('lock_timeout', '2s', true) AS
    set_config_2;
