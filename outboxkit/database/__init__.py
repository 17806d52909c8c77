"""The database below SQLAlchemy: engines, connections, sessions and their errors."""
