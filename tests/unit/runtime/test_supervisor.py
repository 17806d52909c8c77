"""The supervisor of `--processes`, where no signal from outside can come at the right moment."""

import asyncio
import errno
import os
import signal
import socket
import sys

import pytest

from outboxkit.exit_codes import INCOMPLETE
from outboxkit.runtime import supervisor
from outboxkit.runtime.settings import load
from outboxkit.runtime.supervised import VARIABLE
from outboxkit.runtime.supervisor import _Member, _Supervisor

SETTINGS = {"database_url": "postgresql://db/shop", "shutdown_timeout": "1s"}


@pytest.fixture
def supervised(monkeypatch: pytest.MonkeyPatch) -> _Supervisor:
    """A supervisor of one process, whose command line names no program."""
    monkeypatch.setattr(supervisor, "command_line", lambda: ["/nothing/is/here"])
    return _Supervisor([_Member(1, None)], load(SETTINGS), drain=False)


async def test_what_cannot_be_started_is_tried_again_until_a_stop(
    supervised: _Supervisor, capsys: pytest.CaptureFixture[str]
):
    """As when there are too many processes, or a deployment is replacing the program."""
    (member,) = supervised.members
    running = asyncio.create_task(supervised.run())
    while "it cannot be started: [Errno 2]" not in (member.away or ""):
        await asyncio.sleep(0)
    supervised._signalled()
    assert await asyncio.wait_for(running, 60) == 0
    assert "process died, starts again" in capsys.readouterr().out


async def test_a_start_without_file_descriptors_is_tried_again(
    supervised: _Supervisor, monkeypatch: pytest.MonkeyPatch
):
    (member,) = supervised.members

    def none_left() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(socket, "socketpair", none_left)
    running = asyncio.create_task(supervised._keep(member))
    while "Too many open files" not in (member.away or "") and not running.done():
        await asyncio.sleep(0)
    supervised._signalled()
    assert await asyncio.wait_for(running, 60) == 0


@pytest.mark.parametrize(("drain", "code"), [(False, 0), (True, INCOMPLETE)])
async def test_a_process_that_is_killed_after_a_stop_has_not_drained(
    supervised: _Supervisor, monkeypatch: pytest.MonkeyPatch, drain: bool, code: int
):
    supervised.drain = drain
    monkeypatch.setattr(supervisor, "command_line", lambda: [sys.executable, "-c", "import time; time.sleep(3600)"])
    running = asyncio.create_task(supervised.run())
    while (process := supervised.members[0]._process) is None:
        await asyncio.sleep(0)
    supervised._signalled()
    os.kill(process.pid, signal.SIGKILL)
    assert await asyncio.wait_for(running, 60) == code


async def test_a_stop_before_the_first_start_starts_nothing(supervised: _Supervisor):
    supervised._signalled()
    assert await asyncio.wait_for(supervised.run(), 60) == 0
    assert supervised.members[0].away == "not started yet"


async def test_a_stop_while_a_process_is_being_started_reaches_it(
    supervised: _Supervisor, monkeypatch: pytest.MonkeyPatch
):
    """It reads the end of its line as soon as it listens."""
    reading = f"import os; os.read(int(os.environ['{VARIABLE}'].split(',')[1]), 1)"
    monkeypatch.setattr(supervisor, "command_line", lambda: [sys.executable, "-c", reading])
    start = asyncio.create_subprocess_exec

    async def signalled_meanwhile(*command: str, **options: object) -> asyncio.subprocess.Process:
        supervised._signalled()
        return await start(*command, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", signalled_meanwhile)
    assert await asyncio.wait_for(supervised.run(), 60) == 0
