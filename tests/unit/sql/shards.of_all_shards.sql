SELECT outboxkit_sharding.queue, outboxkit_sharding.shards, outboxkit_sharding.draining, outboxkit_sharding.moved_from,
    outboxkit_sharding.move
FROM outboxkit_sharding
ORDER BY outboxkit_sharding.queue;
