"""Rights of a user of RabbitMQ: the names that a relay and a consumer need, and the line that gives them. Pure."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from urllib.parse import unquote, urlsplit

from outboxkit.brokers.rabbitmq.topology import RETRY_EXCHANGE, UNROUTABLE, dead_queue, delay_name
from outboxkit.errors.figures import shell_word
from outboxkit.runtime.sources import Shards

DEFAULT_EXCHANGE = "amq.default"
"""The default exchange, as permissions call it."""
VERBS = ("configure", "write", "read")
_SPECIAL = re.compile(r"([.^$*+?{}\[\]\\|()])")


@dataclass(frozen=True, slots=True)
class RightsNeeded:
    """The names of exchanges and queues that a user must be able to configure, write and read.

    Queues that are split may come to have any number of shards. Their names stand for those of all.
    """

    configure: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    split: tuple[str, ...] = ()

    def __or__(self, other: "RightsNeeded") -> "RightsNeeded":
        """Both together."""
        return RightsNeeded(
            *(_unique((*getattr(self, each.name), *getattr(other, each.name))) for each in fields(self))
        )

    def command(self, vhost: str, user: str) -> str:
        """The command that gives a user these rights. It takes all others in the virtual host from it."""
        patterns = " ".join(shell_word(self._pattern(getattr(self, verb))) for verb in VERBS)
        return f"rabbitmqctl set_permissions -p {shell_word(vhost)} {shell_word(user)} {patterns}"

    def _pattern(self, names: Iterable[str]) -> str:
        """The pattern that matches these names alone, and all shards of the queues that are split."""
        families = [rf"{_escaped(queue)}(\.[0-9]+){{0,2}}(\.dead)?" for queue in self.split]
        others = [_escaped(name) for name in names if not any(re.fullmatch(family, name) for family in families)]
        return f"^({'|'.join([*families, *others])})$" if families or others else "^$"


def of_relay(exchange: str) -> RightsNeeded:
    """A relay declares its exchange and publishes to it; a replay to one queue goes to the default one."""
    return RightsNeeded(configure=(exchange,), write=(exchange, DEFAULT_EXCHANGE))


def of_consumer(
    queues: Iterable[str],
    *,
    exchange: str | None,
    delays: Sequence[timedelta],
    sources: Iterable[str] = (),
    shards: Shards | None = None,
    is_shared: bool = False,
) -> RightsNeeded:
    """A consumer declares its queues and binds them, reads them, and publishes retry copies.

    Args:
        queues: the queues that it consumes.
        exchange: to which they are bound. None: they are taken as they are, and all queues beside them are there.
        delays: the retry delays.
        sources: further exchanges to which they are bound.
        shards: those of the ordered queue that is split, or may be.
        is_shared: the retry queues of the virtual host are there, so that it need not declare them.
    """
    names = tuple(queues)
    dead = tuple(map(dead_queue, names))
    if exchange is None:
        return RightsNeeded(write=(DEFAULT_EXCHANGE,), read=(*names, *dead))
    divider = () if shards is None or shards.count == 1 else (shards.exchange,)
    own = (*divider, *names, *dead)
    waiting = tuple(map(delay_name, delays))
    declared = () if is_shared else (*waiting, RETRY_EXCHANGE, UNROUTABLE)
    return RightsNeeded(
        configure=(exchange, *own, *declared),
        write=_unique((*divider, *names, DEFAULT_EXCHANGE, *waiting, *declared)),
        read=_unique((exchange, *sources, *own, RETRY_EXCHANGE, *declared)),
        split=() if shards is None else (shards.queue,),
    )


def user_of(url: str) -> str:
    """The user in the first of these URLs of a broker; RabbitMQ's own if it has none."""
    return unquote(urlsplit(url.split(",", maxsplit=1)[0].strip()).username or "guest")


def _escaped(name: str) -> str:
    return _SPECIAL.sub(r"\\\1", name)


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
