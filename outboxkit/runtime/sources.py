"""Sources of a consumer's messages, as the settings write them: queues, and further bindings of queues. Pure.

What reads otherwise is a `ValueError`.
"""

import re
from dataclasses import dataclass

_QUEUE = re.compile(r"([^:](?:.*?[^:])??)(?::(\d{1,9}))?", re.DOTALL)
QUEUE_LENGTH, NAME_LENGTH = 200, 255
MOST_AT_ONCE = 1000
"""The most messages that a process, a queue or a handler may handle at once."""


@dataclass(frozen=True, slots=True)
class ConsumedQueue:
    """A queue that a consumer reads.

    Attributes:
        concurrency: the number of its transactions that run at once; None means the setting `concurrency`.
    """

    name: str
    concurrency: int | None = None

    @classmethod
    def parse(cls, text: str) -> "ConsumedQueue":
        """`mails`, or `mails:2` with its own concurrency. The last colon counts, if a number follows it."""
        match = _QUEUE.fullmatch(text.strip())
        number = int(match[2]) if match and match[2] else None
        if match is None or len(match[1]) > QUEUE_LENGTH or (number is not None and not 1 <= number <= MOST_AT_ONCE):
            raise ValueError(
                f"names of 1 to {QUEUE_LENGTH} characters are accepted, with commas between them and no colon at an "
                f"end. Behind a name, :N stands for N messages at once, from 1 to {MOST_AT_ONCE}"
            )
        return cls(match[1], number)


BUCKETS = 12
"""The buckets of keys. Each belongs to one shard, so that there are no more shards: decision 44 says why 12."""


@dataclass(frozen=True, slots=True)
class Shards:
    """The queues among which an exchange divides the messages of one ordered queue, by the buckets of their keys.

    Attributes:
        queue: the queue that is split. Messages that are published to it by its name stay in it.
        count: the number of shards. 1 means that it is not split.
    """

    queue: str
    count: int

    @property
    def names(self) -> tuple[str, ...]:
        """The queues that get the messages: such as `steps.4.0` to `steps.4.3`, or `steps` alone."""
        return tuple(f"{self.exchange}.{number}" for number in range(self.count)) if self.count > 1 else (self.queue,)

    @property
    def exchange(self) -> str:
        """The exchange that divides them, such as `steps.4`."""
        return f"{self.queue}.{self.count}"

    @property
    def rest(self) -> str:
        """The exchange that brings messages without a bucket to the first shard; it has that shard's name."""
        return self.names[0]

    @property
    def consumed(self) -> tuple[str, ...]:
        """The queues to consume: the shards and, for what was published to it by its name, the queue itself."""
        return (*self.names, self.queue) if self.count > 1 else self.names


@dataclass(frozen=True, slots=True)
class Binding:
    """A binding of a queue to an exchange, beside those for the handlers' types.

    Attributes:
        key: the routing key, which may be empty.
        queue: the queue; None means the only one of the process.
    """

    exchange: str
    key: str
    queue: str | None = None

    @classmethod
    def parse(cls, text: str) -> "Binding":
        """`EXCHANGE:KEY`, or `QUEUE=EXCHANGE:KEY`. The last colon separates, and the first equals sign."""
        queue, equals, rest = text.strip().partition("=")
        exchange, colon, key = (rest if equals else text.strip()).rpartition(":")
        lengths = (len(exchange), len(key), len(queue) if equals else 1)
        if not colon or not exchange or lengths[2] == 0 or max(lengths) > NAME_LENGTH:
            raise ValueError(
                "EXCHANGE:KEY is accepted, such as amq.topic:orders.*, or with several queues QUEUE=EXCHANGE:KEY. The "
                "last colon separates; the key may be empty. Several have commas between them"
            )
        return cls(exchange, key, queue if equals else None)


def parse_queues(value: object) -> object:
    """Queues from a text, or from the texts of a repeated option; anything else is left as it is."""
    parts = _parts(value)
    if not isinstance(parts, list | tuple):
        return parts
    queues = tuple(ConsumedQueue.parse(part) if isinstance(part, str) else part for part in parts)
    names = [queue.name for queue in queues if isinstance(queue, ConsumedQueue)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{twice[0]!r} is there twice; each queue is accepted once")
    return queues


def parse_bindings(value: object) -> object:
    """Bindings from a text, or from the texts of a repeated option; anything else is left as it is."""
    parts = _parts(value)
    if not isinstance(parts, list | tuple):
        return parts
    return tuple(Binding.parse(part) if isinstance(part, str) else part for part in parts)


def _parts(value: object) -> object:
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        value = ",".join(value)
    return value.split(",") if isinstance(value, str) else value
