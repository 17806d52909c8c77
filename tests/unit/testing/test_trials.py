"""Deliveries of the kit that do not end, and those that cannot begin."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import create_async_engine

from outboxkit.inbox import handler_of, inbox_handler
from outboxkit.testing.trials import Trial, Trials
from tests.unit.shop import OrderConfirmed, message


@inbox_handler("Books")
def books(session: Any, event: OrderConfirmed) -> None: ...


@inbox_handler("BooksLater")
async def books_later(session: Any, event: OrderConfirmed) -> None: ...


class Nowhere:
    """A database whose file is in a folder that is not there, and a recorder that hears of nothing."""

    def __init__(self, folder: Path) -> None:
        self.killed: list[int | None] = []
        self._file = folder / "missing" / "trial.db"

    def sync_engine(self) -> Any:
        return create_engine(f"sqlite:///{self._file}")

    def async_engine(self) -> Any:
        return create_async_engine(f"sqlite+aiosqlite:///{self._file}")

    def kill(self, backend: int | None) -> None:
        self.killed.append(backend)

    def is_waiting(self, backend: int | None) -> bool:
        return False


def of(database: Any) -> Trials:
    return Trials(database, SimpleNamespace(running=list), 60)  # type: ignore[arg-type]


@pytest.mark.parametrize("handler", [books, books_later])
def test_a_database_that_cannot_be_opened_is_the_delivery_s_error(handler: Any, tmp_path: Path):
    with of(Nowhere(tmp_path)) as running:
        delivery = running.run(Trial(message()), handler_of(handler))
    assert isinstance(delivery.error, OperationalError)
    assert delivery.outcome is None


@pytest.mark.parametrize("handler", [books, books_later])
def test_an_engine_that_cannot_be_made_is_told_at_once(handler: Any):
    def refuse() -> Any:
        raise ModuleNotFoundError("No module named 'driver'")

    refusing: Any = SimpleNamespace(sync_engine=refuse, async_engine=refuse)
    with of(refusing) as running, pytest.raises(ModuleNotFoundError, match="driver"):
        running.run(Trial(message()), handler_of(handler))
