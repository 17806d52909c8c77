INSERT INTO outboxkit_sharding (queue, shards)
VALUES (:queue, :shards)
ON CONFLICT DO NOTHING;
