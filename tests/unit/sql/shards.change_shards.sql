UPDATE outboxkit_sharding
SET shards=:shards, draining=:draining
WHERE outboxkit_sharding.queue = :of;
