"""The database below SQLAlchemy: connections of outboxkit's own, sessions, and the transaction guard."""
