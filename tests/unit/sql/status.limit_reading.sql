SELECT set_config('statement_timeout', '2s', true) AS set_config_1;
