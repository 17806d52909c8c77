SELECT outboxkit_sharding.queue, outboxkit_sharding.shards
FROM outboxkit_sharding
WHERE outboxkit_sharding.shards > 1;
