"""A worker's health, as the worker itself knows it. Other threads read it at any time, even if the event loop hangs."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Health:
    """The state of a worker at one moment.

    Attributes:
        worker: its kind: `relay`, `consumer` or `retention`.
        publishing: the seconds for which the current call of the publisher has lasted; None: there is none.
        without_turn: the seconds since a relay began its last turn; None: it waits out an outage, or has no turns.
        has_slow_publisher: whether a call of the publisher may take twice the publish timeout.
        servers: why it cannot use a server, by the server's name. None: it is connected.
    """

    worker: str
    publishing: float | None = None
    without_turn: float | None = None
    has_slow_publisher: bool = False
    servers: Mapping[str, str | None] = field(default_factory=dict)
