SELECT outboxkit_sharding.queue, outboxkit_sharding.shards, outboxkit_sharding.draining,
    outboxkit_sharding.moved_from, outboxkit_sharding.move
FROM outboxkit_sharding
WHERE outboxkit_sharding.shards > 1 OR outboxkit_sharding.draining IS NOT NULL OR
    outboxkit_sharding.moved_from IS NOT NULL;
