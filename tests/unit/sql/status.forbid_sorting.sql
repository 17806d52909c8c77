SELECT set_config('enable_seqscan', 'off', true) AS set_config_1, set_config('enable_bitmapscan', 'off', true) AS
    set_config_2, set_config('enable_sort', 'off', true) AS set_config_3, set_config('jit', 'off', true) AS
    set_config_4, set_config('lock_timeout', '5s', true) AS set_config_5;
