LISTEN "outboxkit_1";
