"""Rights of a user of RabbitMQ: the names that a relay and a consumer need, and the line that gives them. Pure."""

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import unquote, urlsplit

from outboxkit.brokers.rabbitmq.topology import RETRY_EXCHANGE, UNROUTABLE, dead_queue, delay_name

DEFAULT_EXCHANGE = "amq.default"
"""The default exchange, as permissions call it."""
_SPECIAL = re.compile(r"([.^$*+?{}\[\]\\|()])")


@dataclass(frozen=True, slots=True)
class RightsNeeded:
    """The names of exchanges and queues that a user must be able to configure, write and read."""

    configure: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    read: tuple[str, ...] = ()

    def __or__(self, other: "RightsNeeded") -> "RightsNeeded":
        """Both together."""
        return RightsNeeded(
            *(_unique((*getattr(self, verb), *getattr(other, verb))) for verb in ("configure", "write", "read"))
        )

    def command(self, vhost: str, user: str) -> str:
        """The command that gives a user these rights. It takes all others in the virtual host from it."""
        patterns = " ".join(shlex.quote(_pattern(names)) for names in (self.configure, self.write, self.read))
        return f"rabbitmqctl set_permissions -p {shlex.quote(vhost)} {shlex.quote(user)} {patterns}"


def of_relay(exchange: str) -> RightsNeeded:
    """A relay declares its exchange and publishes to it."""
    return RightsNeeded(configure=(exchange,), write=(exchange,))


def of_consumer(
    queues: Iterable[str],
    *,
    exchange: str | None,
    delays: Sequence[timedelta],
    sources: Iterable[str] = (),
    divider: str | None = None,
    is_shared: bool = False,
) -> RightsNeeded:
    """A consumer declares its queues and binds them, reads them, and publishes retry copies.

    Args:
        queues: the queues that it consumes.
        exchange: to which they are bound. None: they are taken as they are, and all queues beside them are there.
        delays: the retry delays.
        sources: further exchanges to which they are bound.
        divider: the exchange that divides messages among the shards of an ordered queue.
        is_shared: the retry queues of the virtual host are there, so that it need not declare them.
    """
    names = tuple(queues)
    dead = tuple(map(dead_queue, names))
    if exchange is None:
        return RightsNeeded(write=(DEFAULT_EXCHANGE,), read=(*names, *dead))
    own = (*names, *dead) if divider is None else (divider, *names, *dead)
    targets = names if divider is None else (divider, *names)
    waiting = tuple(map(delay_name, delays))
    declared = () if is_shared else (*waiting, RETRY_EXCHANGE, UNROUTABLE)
    return RightsNeeded(
        configure=(exchange, *own, *declared),
        write=_unique((*targets, DEFAULT_EXCHANGE, *waiting, *declared)),
        read=_unique((exchange, *sources, *own, RETRY_EXCHANGE, *declared)),
    )


def user_of(url: str) -> str:
    """The user in the first of these URLs of a broker; RabbitMQ's own if it has none."""
    return unquote(urlsplit(url.split(",", maxsplit=1)[0].strip()).username or "guest")


def _pattern(names: Iterable[str]) -> str:
    """The pattern that matches these names alone."""
    return f"^({'|'.join(escaped)})$" if (escaped := [_SPECIAL.sub(r"\\\1", name) for name in names]) else "^$"


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
