UPDATE outboxkit_operation
SET stops=true
WHERE :of = outboxkit_operation.action
RETURNING outboxkit_operation.action;
