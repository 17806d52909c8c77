"""The retry steps of the tests' consumers: two that a test can wait for, and one that it cannot."""

from outboxkit.settings import parse_duration

DELAYS_TEXT = "200ms,1s,1h"
DELAYS = tuple(parse_duration(step) for step in DELAYS_TEXT.split(","))
