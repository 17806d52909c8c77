DELETE FROM outboxkit_shard_member
WHERE outboxkit_shard_member.queue = :queue AND outboxkit_shard_member.member = :member;
