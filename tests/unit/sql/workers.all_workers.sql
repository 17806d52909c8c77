SELECT outboxkit_worker.id, outboxkit_worker.kind, outboxkit_worker.name, outboxkit_worker.release,
    outboxkit_worker.host, outboxkit_worker.pid, outboxkit_worker.broker, outboxkit_worker.exchange,
    outboxkit_worker.started_at, outboxkit_worker.seen_at, outboxkit_worker.skew, outboxkit_worker.places,
    outboxkit_worker.taken, outboxkit_worker.rate, outboxkit_worker.rests, outboxkit_worker.sessions,
    outboxkit_worker.queues
FROM outboxkit_worker
ORDER BY outboxkit_worker.kind DESC, outboxkit_worker.name, outboxkit_worker.started_at, outboxkit_worker.id;
