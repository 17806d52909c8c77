UPDATE outboxkit_dead_letter
SET parked=:parked, resolution=:as_, resolved_at=:now, resolved_by=:by
WHERE outboxkit_dead_letter.resolution IS NULL AND outboxkit_dead_letter.id = ANY (:ids::BIGINT[]);
