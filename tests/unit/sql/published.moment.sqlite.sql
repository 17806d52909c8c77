SELECT strftime('%Y-%m-%d %H:%M:%f000', 'now') AS strftime_1;
