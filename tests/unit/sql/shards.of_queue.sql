SELECT outboxkit_sharding.shards, outboxkit_sharding.draining, outboxkit_sharding.moved_from, outboxkit_sharding.move
FROM outboxkit_sharding
WHERE outboxkit_sharding.queue = :queue;
