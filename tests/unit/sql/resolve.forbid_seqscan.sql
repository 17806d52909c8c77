SELECT set_config('enable_seqscan', 'off', true) AS set_config_1, set_config('enable_hashjoin', 'off', true) AS
    set_config_2, set_config('enable_mergejoin', 'off', true) AS set_config_3, set_config('jit', 'off', true) AS
    set_config_4;
