"""The kill matrix: processes that are stopped at each step between two servers, in each way, and what is left of it."""

import time
from dataclasses import dataclass
from enum import StrEnum

from tests.acceptance.worker_process import WorkerProcess
from tests.faults.cells import (
    BACK_SECONDS,
    AsyncDoor,
    Batch,
    Cell,
    Consumer,
    DeadReplay,
    Destination,
    Door,
    Drain,
    Failing,
    Floor,
    KeptReplay,
    LeasedDoor,
    Once,
    Ordered,
    OrderedFailing,
    Pausing,
    Prune,
    PruneDays,
    Relay,
    Resuming,
    Sharded,
    ShardMove,
)
from tests.faults.tripwire import Step, Stop
from tests.faults.world import World
from tests.support.polling import eventually

STEP_SECONDS = 60
"""The step must come within these."""


class Fault(StrEnum):
    """What happens at a step."""

    KILLED = "SIGKILL"
    CUT_BEFORE = "cut before it arrives"
    CUT_AFTER = "cut after it has arrived"
    RESTARTED = "its server is killed and started"
    SILENT = "its server is silent"


STOPS = {Fault.CUT_AFTER: Stop.AFTER, Fault.SILENT: Stop.SILENT}
"""All others stop before the message arrives."""


@dataclass(frozen=True)
class Row:
    """One row of the matrix: a step of a scenario."""

    cell: type[Cell]
    what: str
    step: Step

    @property
    def name(self) -> str:
        """Such as `Relay, claim`."""
        return f"{self.cell.__name__}, {self.what}"


def _sql(pattern: str, *, behind: str = "", number: int = 1) -> Step:
    return Step("postgresql", pattern, behind=behind, number=number)


def _commit(behind: str) -> Step:
    """The COMMIT of the transaction with that statement, which may be sent along with it."""
    return _sql("(^|; )COMMIT", behind=behind)


PUBLISH, CONFIRM = Step("amqp", "publish"), Step("amqp", "ack", "server")
DELIVERY, ACK = Step("amqp", "deliver", "server"), Step("amqp", "ack")
REQUEST, ANSWER = Step("http", "POST"), Step("http", "answer", "server")
RELAYED = (
    ("claim", _sql("SKIP LOCKED")),
    ("publish", PUBLISH),
    ("confirm", CONFIRM),
    ("kept row", _sql("INSERT INTO outboxkit_published")),
    ("settle and commit", _commit("DELETE FROM outboxkit_outbox")),
)
HANDLED = (
    ("delivery", DELIVERY),
    ("inbox row", _sql("INSERT INTO outboxkit_inbox")),
    ("the handler's row", _sql("INSERT INTO soak_effect")),
    ("commit", _sql("; COMMIT")),  # with the statement that lifts the transaction's guard
    ("ack", ACK),
)
DOOR = (
    ("key", _sql("INSERT INTO outboxkit_idempotency")),
    ("business row", _sql("INSERT INTO soak_made")),
    ("message", _sql("INSERT INTO outboxkit_outbox")),
    ("answer", _sql("UPDATE outboxkit_idempotency")),
    ("commit", _commit("INSERT INTO outboxkit_outbox")),
)
STEPS: dict[type[Cell], tuple[tuple[str, Step], ...]] = {
    Relay: RELAYED,
    Drain: RELAYED,
    Floor: (
        ("writers", _sql("FROM pg_locks .*'RowExclusiveLock'", number=3)),
        ("oldest row", _sql(r"^SELECT min\(", number=3)),
    ),
    Destination: (
        ("claim", _sql("SKIP LOCKED")),
        ("request", REQUEST),
        ("answer", ANSWER),
        ("the answer's message", _sql("INSERT INTO outboxkit_outbox")),
        ("settle and commit", _commit("DELETE FROM outboxkit_outbox")),
    ),
    Consumer: (*HANDLED, ("the handler's message", _sql("INSERT INTO outboxkit_outbox"))),
    Batch: HANDLED,
    Ordered: HANDLED,
    Sharded: HANDLED,
    ShardMove: (
        ("new number", _sql("UPDATE outboxkit_sharding")),
        ("its commit", _commit("UPDATE outboxkit_sharding")),
        ("marker in front of a new shard", PUBLISH),
        ("binding of the new shards", Step("amqp", "bind exchange")),
        ("end of the old ones' exchange", Step("amqp", "delete exchange")),
        ("old shards", _sql("UPDATE outboxkit_sharding", number=2)),
        ("marker behind an old shard", Step("amqp", "publish", number=5)),
        ("end of the markers", _sql("UPDATE outboxkit_sharding", number=3)),
        ("keys of an old shard", _sql("UPDATE outboxkit_sharding", number=4)),
    ),
    Once: (
        ("intention", _sql("INSERT INTO outboxkit_effect")),
        ("commit of the intention", _commit("INSERT INTO outboxkit_effect")),
        ("request", REQUEST),
        ("answer", ANSWER),
        ("result", _sql("UPDATE outboxkit_effect")),
        ("commit of the result", _commit("UPDATE outboxkit_effect")),
    ),
    Failing: (
        ("retry copy", PUBLISH),
        ("confirm of the copy", CONFIRM),
        ("ack of the original", ACK),
        ("dead letter", _sql("INSERT INTO outboxkit_dead_letter")),
        ("commit of the dead letter", _commit("INSERT INTO outboxkit_dead_letter")),
    ),
    OrderedFailing: (
        ("counted failure", _sql("INTO outboxkit_attempt")),
        ("commit of the count", _commit("INTO outboxkit_attempt")),
        ("dead letter", _sql("INSERT INTO outboxkit_dead_letter")),
        ("commit of the dead letter", _commit("INSERT INTO outboxkit_dead_letter")),
        ("ack", ACK),
    ),
    DeadReplay: (
        ("audit row", _sql("INSERT INTO outboxkit_audit")),
        ("message", _sql("INSERT INTO outboxkit_outbox")),
        ("resolution", _sql("UPDATE outboxkit_dead_letter")),
        ("commit", _commit("UPDATE outboxkit_dead_letter")),
    ),
    KeptReplay: (
        ("audit row", _sql("INSERT INTO outboxkit_audit")),
        ("page", _sql("FROM outboxkit_published", behind="INSERT INTO outboxkit_audit")),
        ("publish", PUBLISH),
        ("confirm", CONFIRM),
        ("end of the audit row", _sql("UPDATE outboxkit_audit")),
    ),
    Prune: (
        ("lock", _sql("pg_try_advisory_lock")),
        ("deletion", _sql("DELETE FROM outboxkit_inbox")),
        ("commit", _commit("DELETE FROM outboxkit_inbox")),
        ("end of the lock", _sql("pg_advisory_unlock")),
    ),
    PruneDays: (
        ("commit of the emptied day", _commit("TRUNCATE")),
        ("commit of the drop", _commit("DROP TABLE .*outboxkit_inbox_")),
        ("attached day", _sql("ATTACH PARTITION .*outboxkit_inbox_")),
        ("commit of the attached day", _commit("ATTACH PARTITION .*outboxkit_inbox_")),
        ("moved kept messages", _sql("DELETE FROM .*outboxkit_published_default")),
        ("commit of their day", _commit("ATTACH PARTITION .*outboxkit_published_")),
        ("dropped kept messages", _sql("DROP TABLE .*outboxkit_published_")),
    ),
    Pausing: (
        ("pause", _sql("INSERT INTO outboxkit_pause")),
        ("commit", _commit("INSERT INTO outboxkit_pause")),
    ),
    Resuming: (
        ("end of the pause", _sql("DELETE FROM outboxkit_pause")),
        ("audit row", _sql("INSERT INTO outboxkit_audit")),
        ("commit", _commit("DELETE FROM outboxkit_pause")),
    ),
    Door: DOOR,
    AsyncDoor: DOOR,
    LeasedDoor: (
        ("key", _sql("INSERT INTO outboxkit_idempotency")),
        ("commit of the key", _commit("INSERT INTO outboxkit_idempotency")),
        ("request", REQUEST),
        ("its answer", ANSWER),
        ("record of the step", _sql("UPDATE outboxkit_idempotency")),
        ("commit of the record", _commit("UPDATE outboxkit_idempotency")),
        ("final answer", _sql("UPDATE outboxkit_idempotency SET .*'done'")),
        ("commit of the final answer", _commit("UPDATE outboxkit_idempotency SET .*'done'")),
    ),
}
ROWS = [Row(cell, what, step) for cell, steps in STEPS.items() for what, step in steps]
EXCLUDED = {
    (cell, "postgresql", Fault.SILENT): "the application's own engine decides how long it waits for a silent database"
    for cell in (Door, AsyncDoor, Once)
}
"""Why a fault is left out of a scenario, at the steps of that protocol."""
CELLS = [(row, fault) for row in ROWS for fault in Fault if (row.cell, row.step.wire, fault) not in EXCLUDED]
QUICK = [[(Row(cell, *step), fault) for step in steps for fault in list(Fault)[:3]] for cell, steps in STEPS.items()]
"""For each scenario the cells without a server that is restarted or silent."""
IN_THE_GATE = [cells[7 * number % len(cells)] for number, cells in enumerate(QUICK)]
"""Those that `make test` has time for: one of each scenario."""


def play(world: World, row: Row, fault: Fault) -> None:
    """Have the fault happen at the step, mend it, and check that all is done and done once."""
    cell = row.cell(world, f"{row.cell.__name__} {row.what} {fault} {next(world.numbers)}")
    running = list[WorkerProcess]()
    server = world.server(row.step.wire)
    at = {Fault.KILLED: lambda: [each.kill() for each in running], Fault.RESTARTED: server.kill}
    cell.prepare()
    wire = world.wires[row.step.wire]
    wire.wait_for(row.step, STOPS.get(fault, Stop.BEFORE), at.get(fault, lambda: None))
    running.append(cell.start(through=True))
    began = time.monotonic()
    while not wire.tripped.wait(0.05):
        cell.poke()
        assert time.monotonic() - began < STEP_SECONDS, f"the step did not come\n{running[0].log.read_text()}"
    if fault is Fault.KILLED:
        running.append(cell.start(through=False))
    if fault is Fault.RESTARTED:
        server.start()
        world.forget()
    eventually(cell.is_done, seconds=BACK_SECONDS)
    cell.end(running[-1])
    wire.cut()  # a silent connection, too, whose server has kept what it was working on
    cell.check()
