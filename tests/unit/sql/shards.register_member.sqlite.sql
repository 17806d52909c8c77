INSERT INTO outboxkit_shard_member (queue, member, shards, seen_at)
VALUES (:queue, :member, :shards, strftime('%Y-%m-%d %H:%M:%f000', 'now'))
ON CONFLICT (queue, member) DO UPDATE
SET seen_at = strftime('%Y-%m-%d %H:%M:%f000', 'now');
