SELECT outboxkit_sharding.shards, outboxkit_sharding.draining
FROM outboxkit_sharding
WHERE outboxkit_sharding.queue = :queue;
