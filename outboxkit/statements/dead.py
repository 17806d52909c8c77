"""Dead letters: kept, listed, replayed, discarded."""

from sqlalchemy import Insert, insert

from outboxkit.tables import dead_letter


def bury() -> Insert:
    """Keep a message that was given up on; executed with a dict of dead letter columns. Locks: none."""
    return insert(dead_letter)
