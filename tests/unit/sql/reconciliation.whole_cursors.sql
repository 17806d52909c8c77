SELECT set_config('cursor_tuple_fraction', '1', true) AS set_config_1, set_config('jit', 'off', true) AS set_config_2;
