SELECT outboxkit_shard_member.member, outboxkit_shard_member.shards
FROM outboxkit_shard_member
WHERE outboxkit_shard_member.queue = :queue
ORDER BY outboxkit_shard_member.member;
