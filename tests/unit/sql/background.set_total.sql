UPDATE outboxkit_operation
SET total=:messages
WHERE :of = outboxkit_operation.action;
