DELETE FROM outboxkit_effect
WHERE rowid IN (SELECT rowid
    FROM outboxkit_effect
    WHERE outboxkit_effect.started_at < :started_at_1 AND outboxkit_effect.locked_until <
        :locked_until_1
    ORDER BY outboxkit_effect.started_at
    LIMIT :param_1 OFFSET :param_2);
