"""A database that falls silent: a statement that gets no byte for long is doubted, asked about, and may be ended.

The kernel sees a connection that is cut, by keepalives and `tcp_user_timeout`. It does not see a peer that acknowledges
and answers nothing: a proxy, a load balancer, a full pooler, a frozen server. So a second connection asks the server
whether it works on the statement. If the server is idle there, or gives no answer, the wait ends with an
`OperationalError`, as with a lost connection. That is an outage.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import NamedTuple

from outboxkit.errors.failures import first_line
from outboxkit.errors.sqlstates import FULL

Facts = tuple[bool, str | None]
"""Whether the server has nothing to do for the statement, and the sessions whose lock it waits for."""


class Patience(NamedTuple):
    """The seconds without a byte after which the server is asked, and after which the wait ends without its answer."""

    asks: float
    limit: float


OWN_PATIENCE = Patience(10, 30)
"""For outboxkit's own statements, which are short, or wait for a lock."""
COMMAND_PATIENCE = Patience(2, 30)
"""The same for a command, for which a person waits."""
HANDLER_PATIENCE = Patience(30, 120)
"""For statements of handlers, which may take hours as long as the server says that it works."""
CAUSES = "Is a pooler's pool full, or a server frozen?"
AGAIN_SECONDS = 5.0
"""The delay before the server is asked again, if it could not be asked."""

Announce = Callable[[str], None]
_announce: Announce | None = None
_doubts = set["Doubt"]()
_last_end = float("-inf")


def announce(say: Announce | None) -> None:
    """Have each doubt of this process printed: a command says for what it waits. None: a service logs its outages."""
    global _announce  # noqa: PLW0603 - of the process
    _announce = say


def tell(text: str) -> None:
    """Print this, if doubts are printed."""
    if _announce is not None:
        _announce(text)


def is_command() -> bool:
    """Whether doubts of this process are printed."""
    return _announce is not None


def ours() -> Patience:
    """The limits for this process's own statements."""
    return COMMAND_PATIENCE if is_command() else OWN_PATIENCE


def longest() -> float:
    """The seconds for which a statement of this process has got no byte, while the server cannot be asked; 0: none."""
    return max((monotonic() - each.since for each in _doubts.copy() if each.trouble), default=0.0)


def last_end() -> float:
    """The time at which a silent connection was last ended, by `monotonic`: older ones in a pool may be silent, too."""
    return _last_end


def note_end() -> None:
    """Note that a silent connection is ended now."""
    global _last_end  # noqa: PLW0603 - of the process
    _last_end = monotonic()


class Doubt:
    """One statement that has got no byte for long. A thread asks the server about it.

    Args:
        since: when the last byte came, by `monotonic`.
        target: the server, for texts.
        ask: asks it over a second connection. It raises if that gets no answer; None: it cannot tell.

    Attributes:
        trouble: the reason for which it could not be asked; empty: there is none.
    """

    def __init__(self, since: float, target: str, ask: Callable[[], Facts | None]) -> None:
        self.since, self._target, self._ask = since, target, ask
        self._over, self.trouble = threading.Event(), ""
        self._facts: Facts | None = None
        _doubts.add(self)
        with suppress(RuntimeError):  # no thread can be started: the limit holds all the same
            threading.Thread(target=self._inquire, name="outboxkit asks the database", daemon=True).start()

    def _inquire(self) -> None:
        said = ""
        while not self._over.is_set():
            try:
                self._facts = self._ask()
            except Exception as error:  # noqa: BLE001 - whatever it is, no answer came
                self.trouble = first_line(error)
                if FULL.search(self.trouble):
                    self._facts = False, None  # the server is there, and gives the statement the benefit of the doubt
            if (why := self._why()) != said and not self._over.is_set():
                tell(f"waiting for the database {self._target}, silent for {monotonic() - self.since:.0f} s: {why}")
                said = why
            if self._facts is not None:
                return
            self._over.wait(AGAIN_SECONDS)

    def _why(self) -> str:
        if self._facts is None:
            return f"a second connection got no answer either ({self.trouble}). {CAUSES}" if self.trouble else CAUSES
        idle, holders = self._facts
        if idle:
            return "the server has nothing to do for this connection"
        return f"it waits for a lock that {holders} holds" if holders else "it works on the statement"

    def judge(self, limit: float) -> str | None:
        """The reason for which the connection is given up. An empty text: the server works, and None: wait on."""
        seconds = monotonic() - self.since
        if self._facts is not None:
            silent = f"the database does not answer: the connection was silent for {seconds:.0f} s while the server had"
            return f"{silent} nothing to do for it" if self._facts[0] else ""
        if seconds < limit:
            return None
        trouble = f", and a new connection got no answer: {self.trouble}" if self.trouble else ""
        return f"the database does not answer: the connection was silent for {seconds:.0f} s{trouble}"

    def end(self) -> None:
        """Ask no more."""
        self._over.set()
        _doubts.discard(self)
