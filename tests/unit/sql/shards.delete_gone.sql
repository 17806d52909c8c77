DELETE FROM outboxkit_shard_member
WHERE outboxkit_shard_member.queue = :queue AND outboxkit_shard_member.seen_at < statement_timestamp() + :ago;
