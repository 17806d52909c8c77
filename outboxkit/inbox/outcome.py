"""What can become of a delivery."""

from enum import StrEnum


class Outcome(StrEnum):
    """What became of a delivery at one handler."""

    PROCESSED = "processed"
    DUPLICATE = "duplicate"
    RETRIED = "retried"
    DEAD = "dead"
    STALE = "stale"
