"""An installation on SQLite, and checks of the tests' own."""

from collections.abc import AsyncGenerator
from pathlib import Path

from outboxkit.operators.doctor.diagnosis import note, problem, warning
from outboxkit.operators.doctor.installation import Installation
from outboxkit.operators.findings import Diagnosis
from outboxkit.runtime.settings import Settings, load

WORSE = {"why": "because", "cure": "do this"}


def settings(url: str, **more: object) -> Settings:
    return load({"database_url": url, "broker_url": "amqp://guest:hunter2@localhost:1/", **more})


async def one_of_each(_: Installation) -> AsyncGenerator[Diagnosis]:
    yield note("note", "a note")
    yield warning("warning", "a warning", **WORSE)
    yield problem("problem", "a problem", **WORSE, commands=("ls",))


async def nothing(_: Installation) -> AsyncGenerator[Diagnosis]:
    if Path("/").is_file():
        yield note("never", "never")


async def half(_: Installation) -> AsyncGenerator[Diagnosis]:
    yield warning("first", "before it failed", **WORSE)
    raise ZeroDivisionError("a fault of the check itself")
