DELETE FROM outboxkit_sleeper
WHERE outboxkit_sleeper.name = :name;
