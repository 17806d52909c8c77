UPDATE outboxkit_operation
SET place=coalesce(:at_place, outboxkit_operation.place), leased_until=(statement_timestamp() + :lasts)
WHERE :of = outboxkit_operation.action AND outboxkit_operation.worker = :by_worker
RETURNING outboxkit_operation.stops;
