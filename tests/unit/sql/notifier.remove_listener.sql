DELETE FROM outboxkit_listener
WHERE outboxkit_listener.name = :name;
