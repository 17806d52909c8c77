UPDATE outboxkit_sharding
SET shards=:shards, draining=:draining, moved_from=:moved_from, move=:move
WHERE outboxkit_sharding.queue = :of;
