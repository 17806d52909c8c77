SELECT pg_notify(:channel, :payload) AS pg_notify_1;
