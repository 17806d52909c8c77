SELECT current_setting('lock_timeout') AS current_setting_1, set_config('lock_timeout', :limit,
    true) AS set_config_1;
