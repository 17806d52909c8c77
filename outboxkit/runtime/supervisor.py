"""`--processes N`: runs a command in so many processes, and starts each again that dies."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import structlog
from sqlalchemy import make_url

from outboxkit.errors import ConfigurationError, OutboxkitError
from outboxkit.exit_codes import FAILED, INCOMPLETE, WRONG_SETTINGS
from outboxkit.runtime import admin
from outboxkit.runtime.lifetime import GIVE_BACK_SECONDS, LEFT_SECONDS, SIGNALS
from outboxkit.runtime.outage import sleep_unless_stopped
from outboxkit.runtime.settings import Settings
from outboxkit.runtime.supervised import VARIABLE, supervised
from outboxkit.runtime.urls import LOOPBACK
from outboxkit.statements.dialects import has_one_writer

RESTART_DELAYS = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds before a process that died is started again: after its first death, its second, and so on."""
STEADY_SECONDS = 60.0
"""A process that has run for so long gets the first delay again."""
KILL_SECONDS = GIVE_BACK_SECONDS + LEFT_SECONDS + 3
"""The time behind the shutdown timeout after which a process that is still there is killed."""
LONGEST_REASON = 64 * 1024


def supervise(settings: Settings, count: int, *, drain: bool = False) -> int | None:
    """Run this command in so many processes, until all have ended; returns the exit code.

    It returns None at once if this process is to do the work itself, alone or as one of several. A process that dies
    is started again, but not in a `drain`, whose processes end by themselves.
    """
    if count == 1 or supervised() is not None:
        return None
    if has_one_writer(make_url(settings.database_url.get_secret_value()).get_backend_name()):
        raise ConfigurationError(
            f"--processes is {count}, and the database is SQLite, which has one writer at a time: more "
            "processes would wait for each other. 1 is accepted with SQLite; more need postgresql+psycopg://…"
        )
    listening = [socket.create_server((LOOPBACK, 0)) if settings.admin_port is not None else None for _ in range(count)]
    members = [_Member(number, each) for number, each in enumerate(listening, 1)]
    try:
        return asyncio.run(_Supervisor(members, settings, drain).run())
    finally:
        for each in listening:
            if each is not None:
                each.close()


def command_line() -> list[str]:
    """The command line of this process, to be run once more."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    name = "__main__" if spec is None else spec.name.removesuffix(".__main__")
    program = [sys.argv[0]] if name == "__main__" else ["-m", name]
    return [sys.executable, *program, *sys.argv[1:]]


@dataclass(frozen=True, slots=True)
class _Ended:
    """The end of a process.

    Attributes:
        code: its exit code, negative for a signal.
        is_start: whether that was an error of its start, which the other processes have, too.
    """

    code: int
    error: str
    is_start: bool

    @property
    def why(self) -> str:
        """The reason in one line."""
        if self.code < 0:
            return f"signal {-self.code}: {signal.strsignal(-self.code)}"
        return f"exit code {self.code}" + (f": {self.error}" if self.error else "")


@dataclass(slots=True, eq=False)
class _Member:
    """One of the processes, which may have been started several times.

    Attributes:
        number: from 1.
        listening: the socket of its admin port, the same one at each start; None: it has none.
        away: why it does not run now; None: it runs.
    """

    number: int
    listening: socket.socket | None
    away: str | None = "not started yet"
    _process: asyncio.subprocess.Process | None = None
    _line: socket.socket | None = None

    async def run(self) -> "_Ended":
        """Start the process and wait for its end."""
        with ExitStack() as sockets:
            try:
                ours, theirs = map(sockets.enter_context, socket.socketpair())
                files = [each.fileno() for each in (theirs, self.listening) if each is not None]
                self._line = ours  # a stop in this moment is heard by the process as soon as it listens
                self._process = await asyncio.create_subprocess_exec(
                    *command_line(),
                    stdin=asyncio.subprocess.DEVNULL,
                    env=os.environ | {VARIABLE: ",".join(map(str, (self.number, *files)))},
                    pass_fds=files,
                    process_group=0,  # Ctrl-C in a terminal is for the supervisor alone
                )
            except OSError as error:  # no memory, no file descriptors, or a deployment that replaces the program
                self._line = None
                return _Ended(FAILED, f"it cannot be started: {error}", is_start=False)
            theirs.close()
            self.away = None
            _log().info("process started", process_number=self.number, pid=self._process.pid)
            code = await self._process.wait()
            self._line = self._process = None
            try:
                said = ours.recv(LONGEST_REASON, socket.MSG_DONTWAIT)
            except OSError:
                said = b""
        return _Ended(code, said[1:].decode(errors="replace"), is_start=said[:1] == b"\1")

    def stop(self) -> None:
        """Have the process finish what it has in hand, and end."""
        if self._line is not None:
            with suppress(OSError):
                self._line.shutdown(socket.SHUT_WR)

    def signal(self, *numbers: signal.Signals) -> None:
        """Send it signals."""
        for number in numbers:
            if self._process is not None:
                with suppress(ProcessLookupError):
                    os.kill(
                        self._process.pid, number
                    )  # its own method reaps one that has ended, and loses the exit code


@dataclass(slots=True, eq=False)
class _Supervisor:
    """Runs the members until all have ended."""

    members: Sequence[_Member]
    settings: Settings
    drain: bool
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _refused: list[tuple[int, str]] = field(default_factory=list)

    async def run(self) -> int:
        """Run the processes; returns the worst exit code."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._signalled)
        with admin.serving_processes(self.settings, self.members):
            _log().info("supervisor started", processes=len(self.members))
            killing = asyncio.create_task(self._kill_late_ones())
            codes = await asyncio.gather(*map(self._keep, self.members))
            killing.cancel()
        for number in SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)  # a late one would spoil the exit code
        if self._refused:
            code, error = max(self._refused)
            raise ConfigurationError(error) if code == WRONG_SETTINGS else OutboxkitError(error)
        _log().info("supervisor stopped")
        return max(codes)

    async def _keep(self, member: _Member) -> int:
        """Start a process again and again, until it is to stop, has drained, or is refused; returns its exit code."""
        deaths, is_first = 0, True
        stopped = INCOMPLETE if self.drain else 0
        while not self._stop.is_set():
            started = time.monotonic()
            ended = await member.run()
            if ended.error and (ended.code == WRONG_SETTINGS or self.drain or (ended.is_start and is_first)):
                self._refused.append((ended.code, ended.error))
                self._end()
            if self._stop.is_set() or (self.drain and ended.code >= 0):
                return ended.code if ended.code >= 0 else stopped
            if self.drain:
                _log().error("process died, others do its work", process_number=member.number, why=ended.why)
                return FAILED
            deaths, is_first = (1 if time.monotonic() - started > STEADY_SECONDS else deaths + 1), False
            delay = RESTART_DELAYS[min(deaths, len(RESTART_DELAYS)) - 1]
            member.away = f"died ({ended.why}), starts again after {delay:g} s"
            _log().warning(
                "process died, starts again", process_number=member.number, why=ended.why, after=f"{delay:g}s"
            )
            await sleep_unless_stopped(self._stop, delay)
        return stopped

    def _signalled(self) -> None:
        if self._stop.is_set():
            for each in self.members:
                each.signal(*SIGNALS)  # two signals, of which a process takes the second one to mean "at once"
        self._end()

    def _end(self) -> None:
        self._stop.set()
        for each in self.members:
            each.stop()

    async def _kill_late_ones(self) -> None:
        await self._stop.wait()
        await asyncio.sleep(self.settings.shutdown_timeout.total_seconds() + KILL_SECONDS)
        for each in self.members:
            each.signal(signal.SIGKILL)


def _log() -> Any:
    return structlog.get_logger("outboxkit").bind(process="supervisor")
