"""A broker with management, a consumer's topology on it, and what doctor finds there."""

import json
import secrets
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import make_dataclass
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from outboxkit import event, inbox_handler
from outboxkit.brokers.rabbitmq import RabbitSubscriber
from outboxkit.brokers.rabbitmq.rights import VERBS
from outboxkit.inbox import Handler, handler_of
from outboxkit.operators.doctor.broker.checks import rights_to_work
from outboxkit.operators.doctor.broker.expected import ExpectedBroker, ExpectedQueue
from outboxkit.operators.doctor.examine import examine
from outboxkit.operators.doctor.installation import Installation
from outboxkit.operators.findings import Diagnosis, Limits
from outboxkit.runtime.settings import Settings, load
from tests.servers.rabbitmq import PrivateRabbitmq
from tests.support.delays import DELAYS, DELAYS_TEXT
from tests.support.plain_client import PlainClient
from tests.support.polling import eventually_async

TYPE = "OrderConfirmed"

LARGEST = 100_000
"""The largest message that the broker takes."""


class Admin:
    """The management API as an administrator uses it, to bring about what doctor shall find."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address = f"http://{parts.hostname}:{parts.port}/api"
        passwords = urllib.request.HTTPPasswordMgrWithPriorAuth()
        passwords.add_password(None, self._address, parts.username or "", parts.password or "", is_authenticated=True)
        handlers = (urllib.request.HTTPBasicAuthHandler(passwords), urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)

    def ask(self, method: str, *path: str, body: object = None) -> Any:
        """Send a request; returns what the answer holds."""
        url = "/".join((self._address, *(quote(part, safe="") for part in path)))
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, content, {"Content-Type": "application/json"}, method=method)
        with self._opener.open(request, timeout=30) as answer:
            return json.loads(answer.read() or b"null")

    def put(self, *path: str, **body: object) -> None:
        self.ask("PUT", *path, body=body)

    def delete(self, *path: str) -> None:
        self.ask("DELETE", *path)

    def policy(self, name: str, pattern: str, *, operator: bool = False, **definition: object) -> None:
        """A policy for queues of the default virtual host."""
        kind = "operator-policies" if operator else "policies"
        self.put(kind, "/", name, **{"pattern": pattern, "definition": definition, "apply-to": "queues", "priority": 0})

    def user(self, name: str, *, password: str = "p", tags: str = "", vhost: str = "/", **rights: str) -> None:
        """A user with rights in a virtual host, if any are named."""
        self.put("users", name, password=password, tags=tags)
        if rights:
            self.put("permissions", vhost, name, **{"configure": "^$", "write": "^$", "read": "^$"} | rights)

    def state(self) -> Any:
        return self.ask("GET", "definitions") | {"rabbitmq_version": ""}


def as_user(url: str, user: str, *, password: str = "p", vhost: str | None = None) -> str:
    parts = urlsplit(url)
    path = parts.path if vhost is None else f"/{quote(vhost, safe='')}"
    return urlunsplit((parts.scheme, f"{user}:{password}@{parts.hostname}:{parts.port}", path, "", ""))


def settings_of(server: PrivateRabbitmq, client: PlainClient, **changes: Any) -> Settings:
    """Settings of a consumer of the client's queue."""
    values = {
        "database_url": "sqlite:///unused.db",
        "broker_url": server.url,
        "management_url": server.management_url,
        "exchange": client.exchange,
        "queue": client.queue,
        "retry_delays": DELAYS_TEXT,
    }
    return load(values | changes)


def can_be_asked(admin: Admin) -> bool:
    try:
        return bool(admin.ask("GET", "overview"))
    except OSError:
        return False


async def found(
    code: str, settings: Settings, handlers: Sequence[Handler] = (), **changes: Any
) -> dict[str, Diagnosis]:
    """The findings, once this one is among them: the broker tells some things a moment later."""

    async def read() -> dict[str, Diagnosis]:
        return (await examined(settings, handlers, **changes))[0]

    return await eventually_async(read, lambda findings: code in findings)


async def examined(
    settings: Settings,
    handlers: Sequence[Handler] = (),
    *,
    engine: AsyncEngine | None = None,
    seconds: float = 60,
) -> tuple[dict[str, Diagnosis], list[str]]:
    """The findings on the broker by their code, and the checks that were left out. A slow machine has time."""
    limits = Limits(check_seconds=seconds)
    report = await examine(Installation(settings, engine, tuple(handlers), limits), ["broker"])
    return {each.code: each for each in report.findings}, [name.removeprefix("broker: ") for name in report.left_out]


@contextmanager
def policy(admin: Admin, pattern: str, *, operator: bool = False, **definition: object) -> Iterator[str]:
    """A policy for the queues with such names, as long as the block lasts; its name."""
    name = f"policy-{secrets.token_hex(4)}"
    admin.policy(name, pattern, operator=operator, **definition)
    yield name
    admin.delete("operator-policies" if operator else "policies", "/", name)


@asynccontextmanager
async def consuming(client: PlainClient, *topics: str, ordered: bool = False) -> AsyncIterator[None]:
    """A consumer of the client's queue, with all queues beside it."""
    topology = {"exchange": client.exchange, "topics": topics or [TYPE], "delays": DELAYS, "ordered": ordered}
    subscriber = RabbitSubscriber(client.url, client.queue, **topology)  # type: ignore[arg-type]
    await subscriber.connect()
    assert await subscriber.receive(wait=False) is None
    yield
    await subscriber.close()


def words(findings: Mapping[str, Diagnosis]) -> str:
    return "\n".join(f"{each.severity} {code}: {each.what}" for code, each in findings.items())


def patterns(client: PlainClient, **changes: str) -> dict[str, str]:
    """The least rights of a user that runs a relay and the consumer."""
    expected = ExpectedBroker(
        urls=(client.url,),
        exchange=client.exchange,
        vhost="/",
        queues=(ExpectedQueue(name=client.queue),),
        delays=DELAYS,
    )
    needed = rights_to_work(expected)
    return {verb: f"^({'|'.join(getattr(needed, verb))})$" for verb in VERBS} | changes


def handlers_of(*types: str, **options: Any) -> list[Handler]:
    handlers = []
    for type_ in types:
        cls = event(type_)(make_dataclass("Event", []))

        def handle(session: Session, event: object) -> None: ...

        handle.__annotations__["event"] = cls
        handlers.append(inbox_handler(f"Handle{type_}", **options)(handle))
    return list(map(handler_of, handlers))
