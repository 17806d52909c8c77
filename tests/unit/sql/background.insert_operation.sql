INSERT INTO outboxkit_operation (action, plan, total, place, stops, worker, leased_until)
VALUES (:action, :plan, :total, :place, :stops, :worker, :leased_until);
