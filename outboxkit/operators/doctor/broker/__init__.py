"""Checks of the broker: what is `expected`, the `snapshot` of what is there, and `checks`, which compare the two.

The checks are pure. `management` reads the HTTP API for the snapshot.
"""

from outboxkit.operators.doctor.broker.checks import CHECKS
from outboxkit.operators.doctor.broker.expected import expected_broker, read_facts, with_facts
from outboxkit.operators.doctor.broker.snapshot import Snapshot, take_snapshot
from outboxkit.operators.doctor.installation import Installation

__all__ = ["CHECKS", "expected_broker", "read_snapshot"]


async def read_snapshot(installation: Installation) -> Snapshot | None:
    """The snapshot of the broker; None if it is not RabbitMQ.

    Raises:
        ConfigurationError: the handlers do not fit the queues of the settings.
    """
    if not installation.settings.broker_url.get_secret_value().startswith("amqp"):
        return None
    return await take_snapshot(with_facts(expected_broker(installation), await read_facts(installation)))
