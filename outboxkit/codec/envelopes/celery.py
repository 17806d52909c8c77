"""Tasks of Celery, in version 2 of its message protocol: a reader. Pure.

https://docs.celeryq.dev/en/stable/internals/protocol.html
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from outboxkit.codec.envelopes.envelope import Envelope, moment_of, parse_json, scalars, storable_or_none, type_name
from outboxkit.codec.headers import LIMIT
from outboxkit.compression import Compression, inflate
from outboxkit.errors import DecodeError
from outboxkit.message import Message

ARGUMENTS_LIMIT = 64
"""The maximum number of positional arguments of a task."""
COMPRESSIONS_OF_KOMBU: Mapping[str, Compression] = {"application/x-gzip": "gzip", "application/zstd": "zstd"}
"""Values of its header `compression`. The first one is a stream of zlib, which is inflated as well."""

_Missing = msgspec.UnsetType
_Arguments = msgspec.defstruct(
    "_Arguments",
    [(f"argument_{index}", msgspec.Raw | _Missing, msgspec.UNSET) for index in range(ARGUMENTS_LIMIT)],
    array_like=True,
    forbid_unknown_fields=True,
)
_UNKNOWN = ("argsrepr", "kwargsrepr", "timelimit", "stamps", "stamped_headers")
"""Headers of Celery that say nothing to a handler. The first two repeat the arguments."""


class _Embedded(msgspec.Struct):
    """The tasks that a worker of Celery calls after this one."""

    callbacks: Any = None
    errbacks: Any = None
    chain: Any = None
    chord: Any = None


@dataclass(frozen=True, slots=True)
class Celery:
    """A reader of tasks, for handlers that take over the work of Celery's workers.

    The task's name is the event's name, and its keyword arguments are the event's fields. Its id is the message's, its
    `root_id` the correlation id and its `parent_id` the causation id. Only JSON is read, because pickle runs what the
    sender wants.

    Properties that a handler would ignore silently are refused: tasks that are to be called afterwards, an `eta` to
    come, an `expires` that is past. Times need a time zone.

    Args:
        types: the event's name for a task's name; any other task's name is the event's name itself.
        arguments: the names of a task's positional arguments, by the task's name. A task that has one such argument and
            no others needs no name: this argument is the event.
        now: for tests.
    """

    types: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, Sequence[str]] = field(default_factory=dict)
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def __call__(self, envelope: Envelope) -> Message | None:
        """The message of a task; None if the envelope is not one.

        Raises:
            DecodeError: it is one, and cannot be handled like this.
        """
        headers = dict(envelope.headers)
        task, id_ = headers.pop("task", None), headers.pop("id", None)
        if not isinstance(task, str) or not isinstance(id_, str):
            return None
        if envelope.media_type != "application/json":
            raise DecodeError(f"task {task!r} is serialized as {envelope.media_type!r}; application/json is read")
        self._check_time(headers)
        rest = {name: value for name, value in headers.items() if name not in _UNKNOWN}
        return Message(
            id=id_,
            type=type_name(self.types, task),
            payload=self._payload(task, _body(envelope, rest.pop("compression", None))),
            topic=envelope.routing_key or None,
            headers=scalars(rest),
            correlation_id=storable_or_none(headers.get("root_id")) or envelope.correlation_id,
            causation_id=storable_or_none(headers.get("parent_id")),
            created_at=envelope.timestamp,
        )

    def _check_time(self, headers: Mapping[str, Any]) -> None:
        eta, expires = moment_of(headers.get("eta")), moment_of(headers.get("expires"))
        if headers.get("eta") is not None and (eta is None or eta > self.now()):
            raise DecodeError(f"its eta is {str(headers['eta'])[:40]!r}, and a handler runs at once")
        if headers.get("expires") is not None and expires is None:
            raise DecodeError(f"its expires is {str(headers['expires'])[:40]!r}; a time with a time zone is accepted")
        if expires is not None and expires < self.now():
            raise DecodeError(f"it has expired, at {expires}")

    def _payload(self, task: str, body: bytes) -> bytes:
        args, kwargs, embedded = parse_json(body, tuple[msgspec.Raw, msgspec.Raw, msgspec.Raw])
        embed = parse_json(embedded, _Embedded | None, limit=LIMIT)
        for name in _Embedded.__struct_fields__:
            if getattr(embed, name, None):
                raise DecodeError(f"task {task!r} has {name}, which only a worker of Celery can call")
        values = [
            value for value in msgspec.structs.astuple(parse_json(args, _Arguments)) if value is not msgspec.UNSET
        ]
        keywords, names = bytes(kwargs).strip(), self.arguments.get(task, ())
        if keywords[:1] != b"{":
            raise DecodeError(f"the keyword arguments of task {task!r} are not an object")
        if not values:
            return keywords
        if not names and len(values) == 1 and not keywords[1:-1].strip():
            return bytes(values[0])
        if len(values) > len(names):
            raise DecodeError(
                f"task {task!r} has {len(values)} positional arguments, and names for {len(names)}: give the reader "
                f"arguments={{{task!r}: (…)}}"
            )
        for name in parse_json(kwargs, dict[str, msgspec.Raw]):
            if name in names[: len(values)]:
                raise DecodeError(f"task {task!r} gives {name!r} twice, by position and by name")
        fields = [msgspec.json.encode(name) + b":" + bytes(value) for name, value in zip(names, values, strict=False)]
        others = [rest] if (rest := keywords[1:-1].strip()) else []
        return b"{" + b",".join([*fields, *others]) + b"}"


def _body(envelope: Envelope, compression: object) -> bytes:
    body = envelope.document()
    if compression is None:
        return body
    known = COMPRESSIONS_OF_KOMBU.get(compression) if isinstance(compression, str) else None
    if known is None:
        names = ", ".join(COMPRESSIONS_OF_KOMBU)
        raise DecodeError(f"its compression is {str(compression)[:40]!r}; one of {names} is read")
    return inflate(body, known, limit=envelope.limit)
