SELECT pg_advisory_unlock(:pg_advisory_unlock_2) AS pg_advisory_unlock_1;
