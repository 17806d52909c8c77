SELECT strftime('%Y-%m-%d %H:%M:%f', 'now') AS strftime_1;
