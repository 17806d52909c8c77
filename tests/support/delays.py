"""The retry delays of the tests' consumers: two that a test can wait for, and one that it cannot.

All consumers of a virtual host share a queue for each delay. So each process of the tests has delays of its own.
"""

import os

from outboxkit.brokers.rabbitmq.topology import delay_name
from outboxkit.runtime.settings import parse_duration

_OWN = os.getpid() % 97 + 1
DELAYS_TEXT = f"{200 + _OWN}ms,{1000 + _OWN}ms,{3_600_000 + _OWN}ms"
DELAYS = tuple(parse_duration(step) for step in DELAYS_TEXT.split(","))
WAITING = tuple(map(delay_name, DELAYS))
"""The queues in which messages wait for these delays."""
