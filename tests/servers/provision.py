"""Where the tests' servers come from: the environment, Docker, this machine's programs, or apt-get, in this order."""

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar, cast

from tests.servers import apt, containers, pgbouncer, postgresql, rabbitmq
from tests.servers.external import External
from tests.servers.server import OwnServer, Server, ServersUnavailable

P = TypeVar("P")


@dataclass(frozen=True)
class Origin:
    """A server that can be had."""

    where: str
    build: Callable[[], Server]


@dataclass(frozen=True)
class Kind(Generic[P]):
    """A kind of server, and each way to get one; `P` is what finding its programs yields."""

    name: str
    variable: str
    example: str
    image: str
    package: str
    find: Callable[[], P | None]
    private: Callable[[P], Server]
    container: Callable[[], Server]
    external: Callable[[str], Server]
    folder: str = ""
    """The variable with the folder of its programs, if there is one; `P` is a `Path` then."""


@dataclass(frozen=True)
class Machine:
    """What this machine has to offer."""

    environment: Mapping[str, str]
    engine_has: Callable[[str], bool]
    may_install: Callable[[], bool]
    install: Callable[[str], None]


POSTGRESQL = Kind(
    name="PostgreSQL",
    variable="OUTBOXKIT_TEST_DATABASE_URL",
    example="postgresql://user:password@host:5432/postgres",
    image=postgresql.IMAGE,
    package="postgresql",
    find=postgresql.find_programs,
    private=postgresql.PrivatePostgresql,
    container=postgresql.postgresql_container,
    external=lambda url: External(postgresql.with_driver(url), "OUTBOXKIT_TEST_DATABASE_URL", postgresql.connect),
    folder="OUTBOXKIT_TEST_POSTGRESQL_BIN",
)
RABBITMQ = Kind(
    name="RabbitMQ",
    variable="OUTBOXKIT_TEST_BROKER_URL",
    example="amqp://user:password@host:5672/",
    image=rabbitmq.IMAGE,
    package="rabbitmq-server",
    find=rabbitmq.find_programs,
    private=rabbitmq.PrivateRabbitmq,
    container=rabbitmq.rabbitmq_container,
    external=lambda url: External(url, "OUTBOXKIT_TEST_BROKER_URL", rabbitmq.connect),
)


def this_machine() -> Machine:
    """The machine that the tests run on."""
    return Machine(os.environ, containers.engine_has, apt.may_install, apt.install)


def choose(kind: Kind[P], machine: Machine) -> Origin:
    """The first way that works, installing programs as the last one; ServersUnavailable if none does."""
    if url := machine.environment.get(kind.variable):
        return Origin(f"the server in {kind.variable}", partial(kind.external, url))
    if folder := machine.environment.get(kind.folder):
        return Origin(f"a private instance of the programs in {folder}", partial(kind.private, cast("P", Path(folder))))
    if machine.engine_has(kind.image):
        return Origin(f"a container of {kind.image}", kind.container)
    found = kind.find()
    if found is None and machine.may_install():
        machine.install(kind.package)
        found = kind.find()
    if found is not None:
        return Origin(f"a private instance of the programs in {found}", partial(kind.private, found))
    raise ServersUnavailable(
        f"The tests need {kind.name}, and none was found. Any of these is enough:\n"
        f"  - set {kind.variable}={kind.example}\n"
        f"  - start Docker (the image is {kind.image})\n"
        f"  - install {kind.name} on this machine (Debian, Ubuntu: sudo apt-get install {kind.package})"
    )


def provide_postgresql() -> Server:
    """A PostgreSQL server, not started yet where it is ours to start."""
    return choose(POSTGRESQL, this_machine()).build()


def provide_rabbitmq() -> Server:
    """A RabbitMQ server, not started yet where it is ours to start."""
    return choose(RABBITMQ, this_machine()).build()


def provide_own(kind: Kind[P]) -> Server:
    """A server that tests may stop and kill, even where the environment names another one."""
    machine = this_machine()
    others = {name: value for name, value in machine.environment.items() if name != kind.variable}
    return choose(kind, replace(machine, environment=others)).build()


def provide_own_rabbitmq(**settings: str) -> OwnServer:
    """A RabbitMQ for tests that stop it, block it, or need these settings of its Erlang application `rabbit`."""
    kind = replace(
        RABBITMQ,
        private=partial(rabbitmq.PrivateRabbitmq, settings=settings),
        container=partial(rabbitmq.rabbitmq_container, settings=settings),
    )
    return cast("OwnServer", provide_own(kind))


def provide_pooler(database_url: str, *, mode: str = "session", size: int = 20) -> pgbouncer.Pgbouncer:
    """A PgBouncer in front of this database, not started yet."""
    machine = this_machine()
    program = pgbouncer.find_program()
    if program is None and machine.may_install():
        machine.install("pgbouncer")
        program = pgbouncer.find_program()
    if program is None:
        raise ServersUnavailable("The tests need PgBouncer (Debian, Ubuntu: sudo apt-get install pgbouncer)")
    return pgbouncer.Pgbouncer(program, database_url, mode=mode, size=size)


def provide_chromium() -> str:
    """The program Chromium, which shows pages as people see them."""
    machine = this_machine()
    if (found := shutil.which("chromium")) is None and machine.may_install():
        machine.install("chromium")
        found = shutil.which("chromium")
    if found is None:
        raise ServersUnavailable("The tests need Chromium (Debian: sudo apt-get install chromium)")
    return found


def provide_faketime() -> str:
    """The program `faketime`, which starts another one with a clock of its own."""
    machine = this_machine()
    if shutil.which("faketime") is None and machine.may_install():
        machine.install("faketime")
    found = shutil.which("faketime")
    if found is None:
        raise ServersUnavailable("The tests need faketime (Debian, Ubuntu: sudo apt-get install faketime)")
    return found
