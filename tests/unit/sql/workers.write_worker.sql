INSERT INTO outboxkit_worker (id, kind, name, release, host, pid, broker, exchange, started_at, seen_at, skew, places,
    taken, rate, rests, sessions, queues)
VALUES (:id, :kind, :name, :release, :host, :pid, :broker, :exchange, statement_timestamp(), statement_timestamp(),
    :skew, :places, :taken, :rate, :rests, :sessions, :queues)
ON CONFLICT (id) DO UPDATE
SET seen_at = statement_timestamp(), skew = :skew, places = :places, taken = :taken, rate = :rate, rests = :rests,
    sessions = :sessions, queues = :queues;
