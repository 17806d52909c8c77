INSERT INTO outboxkit_shard_member (queue, member, shards, seen_at)
VALUES (:queue, :member, :shards, statement_timestamp())
ON CONFLICT (queue, member) DO UPDATE
SET seen_at = statement_timestamp();
