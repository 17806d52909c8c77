"""A process that is killed between any two steps of an effect, and then another one: how many mails the sink has."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine, select, update

from outboxkit import tables
from tests.integration.effects.conftest import MailSink
from tests.processes import run_to_end
from tests.support.databases import migrate
from tests.support.night import by_day_on

PLACES = [
    ("before the first commit", 0, True),
    ("after commit 1", 0, False),
    ("before the call", 0, False),
    ("after the call", 1, False),
    ("after commit 2", 1, True),
]
"""Where it is killed, how many mails were sent then, and whether the next run knows that."""


@pytest.fixture
def effects_url(database_url: str, tmp_path: Path) -> str:
    """Where effects are noted: on SQLite a file of their own."""
    if not database_url.startswith("sqlite"):
        return database_url
    url = f"sqlite:///{tmp_path / 'effects.db'}"
    migrate(url)
    return url


async def run(*arguments: str) -> tuple[int, str, str]:
    """A process of its own that is to send the mail; its exit code, its output and its log."""
    command = [sys.executable, "-m", "tests.integration.effects.mailing", *arguments]
    ended = await asyncio.to_thread(run_to_end, command, {})
    return ended.returncode, ended.stdout, ended.stderr


def state(url: str) -> str | None:
    engine = create_engine(url)
    with engine.connect() as connection:
        found = connection.execute(select(tables.effect.c.state)).scalar()
    engine.dispose()
    return found


def known(policy: str, sent: int, knows: bool) -> tuple[str, int]:
    """What the next run says, and how many mails there are then."""
    if knows:
        return ("remembered", 1) if sent else ("made", 1)
    return ("skipped", sent) if policy == "skip" else ("repeated", sent + 1)


def end_leases(url: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(update(tables.effect).values(locked_until=tables.effect.c.started_at))
    engine.dispose()


@pytest.mark.parametrize("policy", ["skip", "repeat"])
@pytest.mark.parametrize(("place", "sent", "knows"), [*PLACES, ("before the handler's commit", 1, True)])
@by_day_on("postgresql")
async def test_in_a_handler_the_next_run_decides_at_once(
    database_url: str, effects_url: str, sink: MailSink, policy: str, place: str, sent: int, knows: bool
):
    given = (database_url, effects_url, str(sink.port), policy)
    assert (await run(*given, place, "-"))[0] == -signal.SIGKILL
    assert len(sink.mails) == sent

    code, output, errors = await run(*given, "-", "-")
    outcome, mails = known(policy, sent, knows)
    assert (code, f"outcome='{outcome}'" in output, output.splitlines()[-1:]) == (0, True, ["processed"]), errors
    assert len(sink.mails) == mails
    assert ("an effect is unknown" in output + errors) is not knows


@pytest.mark.parametrize("policy", ["skip", "repeat"])
@pytest.mark.parametrize(("place", "sent", "knows"), PLACES[2:])
@by_day_on("sqlite")
async def test_with_a_key_of_its_own_the_next_run_decides_after_the_lease(
    database_url: str, sink: MailSink, policy: str, place: str, sent: int, knows: bool
):
    given = (database_url, database_url, str(sink.port), policy)
    assert (await run(*given, place, "receipt-7"))[0] == -signal.SIGKILL

    async def again() -> tuple[int, str, str]:
        return await run(*given, "-", "receipt-7")

    if not knows:
        assert "InProgressElsewhere" in (await again())[2]
        end_leases(database_url)
    code, output, errors = await again()
    outcome, mails = known(policy, sent, knows)
    assert (code, f"outcome='{outcome}'" in output) == (0, True), output + errors
    assert len(sink.mails) == mails
    code, output, errors = await again()
    assert (code, f"outcome='{'skipped' if outcome == 'skipped' else 'remembered'}'" in output) == (0, True), errors
    assert len(sink.mails) == mails
    assert state(database_url) == {"skipped": "skipped", "repeated": "repeated"}.get(outcome, "done")
