SELECT outboxkit_published.position
FROM outboxkit_published
LIMIT :param_1;
