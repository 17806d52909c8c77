SELECT outboxkit_shard_member.queue, outboxkit_shard_member.member, outboxkit_shard_member.shards
FROM outboxkit_shard_member
WHERE outboxkit_shard_member.seen_at >= statement_timestamp() + :ago;
