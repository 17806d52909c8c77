INSERT INTO outboxkit_listener (name, until)
VALUES (:name, (clock_timestamp() + :seconds * interval '1 second'))
ON CONFLICT (name) DO UPDATE
SET until = excluded.until;
