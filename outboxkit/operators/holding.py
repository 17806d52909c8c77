"""Whether a pause is kept: the rows of workers that rest say so, and the sessions of the others are found."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row

from outboxkit import statements
from outboxkit.errors.figures import many
from outboxkit.runtime.pauses import Pause
from outboxkit.runtime.workers import KnownWorker, is_session_of, read_workers
from outboxkit.statements.dialects import is_server

MOST_WORKERS = 5


@dataclass(frozen=True, slots=True)
class Holding:
    """The processes that a pause is about.

    Attributes:
        holders: the number of processes that have acknowledged it: nothing is in flight there.
        others: sessions of processes that have not. They are busy still, hang, or know nothing of pauses.
    """

    process: str
    name: str
    holders: int
    others: tuple[Row[Any], ...]

    def __str__(self) -> str:
        """`2 relays hold`, or `1 of at least 2 relays holds; session … has not acknowledged the pause, …`."""
        holds = "holds" if self.holders == 1 else "hold"
        if not self.others:
            return f"{many(self.holders, self.process)} {holds}" if self.holders else f"no {self.process} is connected"
        share = f"{self.holders} of at least {self.holders + 1} {self.process}s {holds}"
        hosts = ", ".join(sorted({each.address for each in self.others if each.address}))
        pids = ", ".join(str(each.pid) for each in self.others[:MOST_WORKERS])
        more = ", …" if len(self.others) > MOST_WORKERS else ""
        where = f" from {hosts}" if hosts else ""
        have = "has" if len(self.others) == 1 else "have"
        named = f"{many(len(self.others), 'session')}{where} ({pids}{more}) {have}"
        return f"{share}; {named} not acknowledged the pause, and may go on"


def read_holding(connection: Connection, pauses: Sequence[Pause]) -> tuple[Holding, ...]:
    """The processes that each of these pauses is about, in the connection's transaction; none on SQLite.

    A process holds once all of it rests that the pause is about: it may consume several shards of a queue.
    """
    if not pauses or not is_server(connection.dialect.name):
        return ()
    sessions, workers = connection.execute(statements.activity.sessions()).all(), read_workers(connection)
    holding = list[Holding]()
    for pause in pauses:
        processes = defaultdict[str, list[KnownWorker]](list)
        for worker in workers:
            if (worker.kind, worker.name) == (pause.process, pause.name):
                processes[worker.process].append(worker)
        holders = [parts for parts in processes.values() if all(each.rests for each in parts)]
        acknowledged = {pid for parts in holders for each in parts for pid in each.sessions}
        others = tuple(
            each
            for each in sessions
            if is_session_of(each.name, pause.process, pause.name) and each.pid not in acknowledged
        )
        holding.append(Holding(pause.process, pause.name, len(holders), others))
    return tuple(holding)
