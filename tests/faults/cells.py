"""The scenarios of the kill matrix: a process under test, and what must be true of it at the end."""

import operator
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

import httpx
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from outboxkit import tables
from outboxkit.statements.partitions import INBOX, PUBLISHED, first_id
from tests.acceptance.worker_process import WorkerProcess
from tests.faults import shop
from tests.faults.world import MESSAGES, World
from tests.processes import COMMAND
from tests.support.polling import eventually

BACK_SECONDS = 120
"""All must be done within these: a silent peer is noticed within half a minute."""
FLOOR_ROUNDS = 30
"""Claims of a relay in which its floor rises, if it may."""
DAY = timedelta(days=1)
NEW = {"processed_at": datetime.now(UTC)}


@dataclass
class Cell:
    """One run of a scenario: what is there before, the process under test, and what must be true at the end."""

    world: World
    subject: str

    def prepare(self) -> None:
        """What is there before the process starts: all that it will do."""
        raise NotImplementedError

    def start(self, *, through: bool) -> WorkerProcess:
        """Start the process under test."""
        raise NotImplementedError

    def poke(self) -> None:
        """Ask it for what it does only when it is asked."""

    def is_done(self) -> bool:
        """Whether all is as it would be without the fault."""
        raise NotImplementedError

    def check(self) -> None:
        """What must be true at the end."""

    def end(self, process: WorkerProcess) -> None:
        """End the process cleanly."""
        assert process.stop() == 0, process.log.read_text()


class Relay(Cell):
    """A relay publishes two messages of one key, and keeps them."""

    def prepare(self) -> None:
        self.tap = self.world.client.bind("#", queue=self.world.queue("tap"))
        self.made = self.world.add(self.subject)

    def start(self, *, through: bool) -> WorkerProcess:
        return self.world.start(COMMAND, "relay", through=through)

    def is_done(self) -> bool:
        return self.world.rows(tables.outbox, tables.outbox.c.message_id.in_(self.made)) == 0

    def check(self) -> None:
        published = [each.properties.message_id for each in self.world.client.take_all(self.tap)]
        assert list(dict.fromkeys(published)) == self.made
        assert self.world.rows(tables.published, tables.published.c.message_id.in_(self.made)) == MESSAGES


class Floor(Relay):
    """A relay's floor stays below the positions of open transactions, each of which adds two messages of one key."""

    def prepare(self) -> None:
        super().prepare()
        self.rounds, late = 0, [f"{self.subject} late {number}" for number in range(5)]
        self.keys, self.open = [self.subject, *late], [(key, Session(self.world.engine)) for key in late]
        for key, session in self.open:
            self._add(session, key)
        far = "SELECT nextval(pg_get_serial_sequence('outboxkit_outbox', 'position')) FROM generate_series(1, 200)"
        session.execute(text(far))  # such a gap has the relay read ten times a second how far the floor may rise

    def poke(self) -> None:
        """Have the relay claim more."""
        with suppress(OperationalError):
            self.world.add(self.subject)

    def is_done(self) -> bool:
        """Some claims more, and then the transactions commit, one by one: a claim each 2 s begins without the floor."""
        if self.world.rows(tables.outbox, tables.outbox.c.key.in_(self.keys)):
            return False
        self.rounds += 1
        if self.rounds < FLOOR_ROUNDS:
            self.poke()
        elif self.open:
            key, session = self.open.pop()
            with suppress(OperationalError), session:  # it may have ended with its server
                self._add(session, key)
                session.commit()
        else:
            return True
        return False

    def check(self) -> None:
        published = [each.properties.message_id for each in self.world.client.take_all(self.tap)]
        for made in map(self.world.ids, self.keys):
            assert [each for each in dict.fromkeys(published) if each in made] == made
            assert self.world.rows(tables.published, tables.published.c.message_id.in_(made)) == len(made)

    def _add(self, session: Session, key: str) -> None:
        shop.add(session, shop.StepTaken(key), key=key)
        session.flush()


class Destination(Relay):
    """A relay asks a service of somebody else by two messages of one key, and adds its answers as messages."""

    def prepare(self) -> None:
        self.replies = self.world.client.bind("Charged", queue=self.world.queue("charged"))
        self.made = self.world.add(self.subject, shop.Charge)

    def start(self, *, through: bool) -> WorkerProcess:
        url = (self.world.urls if through else self.world.direct)["OUTSIDE_URL"]
        return self.world.start(COMMAND, "relay", "--destination", "outside", through=through, OUTBOXKIT_BROKER_URL=url)

    def check(self) -> None:
        asked = [each for each in self.world.outside.requests if each in self.made]
        assert list(dict.fromkeys(asked)) == self.made
        assert self.world.rows(tables.published, tables.published.c.message_id.in_(self.made)) == MESSAGES
        self.world.client.disconnect()
        self.world.run("relay", "--drain")
        answers = [each.properties.correlation_id for each in self.world.client.take_all(self.replies)]
        assert len(answers) == MESSAGES


class Consumer(Cell):
    """A consumer handles two messages of one key, whose effects have no constraint that would hide a second one."""

    name = "plain"
    handlers: tuple[str, ...] = ("PlainStep", "ThreadStep")
    options: tuple[str, ...] = ()
    event: Callable[[str], shop.Added] = shop.StepTaken

    def prepare(self) -> None:
        self.world.client.bind(shop.ECHO, queue=self.world.queue("echoes"))  # handlers add them, later cells drain them
        self.queue = self.world.queue(self.name)
        if not self.world.client.has_queue(self.queue):
            drained = self.start(through=False, more=("--drain",))
            assert drained.wait() == 0, drained.log.read_text()
        self.made = self.world.send(self.subject, type(self).event)

    def start(self, *, through: bool, more: tuple[str, ...] = ()) -> WorkerProcess:
        options = ("tests.faults.shop", "--queue", self.queue, *self.options, *more)
        return self.world.start(
            COMMAND, "consume", *options, through=through, SOAK_CONSUMER=self.name.partition("-")[0]
        )

    def is_done(self) -> bool:
        return all(len(self.world.effects(self.made, handler)) >= MESSAGES for handler in self.handlers)

    def drain(self) -> None:
        """Handle what comes again, as it was not acked: nothing more may come of it."""

        def left() -> dict[str, int]:
            drained = self.start(through=False, more=("--drain",))
            assert drained.wait() == 0, drained.log.read_text()
            self.world.client.disconnect()
            depths = {queue: self.world.client.depth(queue) for queue in self.queues()}
            return {queue: depth for queue, depth in depths.items() if depth}

        eventually(left, operator.not_)

    def queues(self) -> list[str]:
        """All of its queues."""
        return [self.queue]

    def check(self) -> None:
        self.drain()
        self.check_made()

    def check_made(self) -> None:
        """Each message was handled once, in order if that is promised."""
        for handler in self.handlers:
            found = self.world.effects(self.made, handler)
            assert (found if "--ordered" in self.options else sorted(found)) == self.made
        inbox, dead = tables.inbox.c, tables.dead_letter.c
        assert self.world.rows(tables.inbox, inbox.message_id.in_(self.made), inbox.attempts > 1) == 0
        assert self.world.rows(tables.dead_letter, dead.message_id.in_(self.made)) == 0
        assert self.world.rows(tables.attempt, tables.attempt.c.message_id.in_(self.made)) == 0


class Batch(Consumer):
    """A handler with `batch=True`."""

    name, handlers = "batch", ("BatchStep",)


class Ordered(Consumer):
    """An ordered consumer."""

    name, handlers, options = "ordered", ("OrderedStep",), ("--ordered",)


class Sharded(Consumer):
    """An ordered consumer of a queue in two shards."""

    name, handlers, options = "sharded", ("ShardedStep",), ("--ordered", "--shards", "2")

    def queues(self) -> list[str]:
        shards = int(self.options[-1])
        return [self.queue, *(self.world.client.own(f"{self.queue}.{shards}.{each}") for each in range(shards))]


class ShardMove(Sharded):
    """The same queue gets a third shard, while a relay publishes messages of four keys."""

    old: Sequence[str] = ()

    def prepare(self) -> None:
        number = next(self.world.numbers)
        self.name, self.keys = f"{Sharded.name}-{number}", [self.subject, *(f"{self.subject} {each}" for each in "bcd")]
        super().prepare()
        self.old, self.options = self.queues(), (*Sharded.options[:-1], "3")
        self.relay = self.world.start(COMMAND, "relay")

    def poke(self) -> None:
        """Messages of the next key, once those before them are published."""
        with suppress(OperationalError):
            if self.world.rows(tables.outbox, tables.outbox.c.key.in_(self.keys)) == 0:
                self.keys.append(self.keys.pop(0))
                self.world.add(self.keys[0])

    def is_done(self) -> bool:
        of = tables.sharding.c
        is_moved = (of.queue == self.queue, of.shards == 3, of.moved_from.is_(None), of.draining.is_(None))
        if self.world.rows(tables.sharding, *is_moved):
            return True
        self.poke()
        return False

    def queues(self) -> list[str]:
        return [*super().queues(), *self.old]

    def check(self) -> None:
        for key in self.keys:
            self.world.add(key)
        eventually(lambda: self.world.rows(tables.outbox, tables.outbox.c.key.in_(self.keys)) == 0)
        assert self.relay.stop() == 0, self.relay.log.read_text()
        self.drain()
        for key in self.keys:
            self.made = self.world.ids(key)
            self.check_made()
        assert not self.world.client.has_exchange(f"{self.queue}.2")
        self.world.client.delete_exchange(f"{self.queue}.3")  # the messages of later cells do not come here


class Once(Consumer):
    """A handler asks a service of somebody else by `effects.once`, under the id of the message."""

    name, handlers, event = "once", ("OnceStep",), shop.OnceAsked

    def check(self) -> None:
        self.drain()
        assert sorted(self.world.effects(self.made, "OnceStep")) == self.made
        effect, dead = tables.effect.c, tables.dead_letter.c
        for id_ in self.made:
            asked, mine = self.world.outside.requests.count(id_), effect.key.contains(id_)
            assert self.world.rows(tables.effect, mine) == 1
            assert asked == 1 if self.world.rows(tables.effect, mine, effect.state == "done") else asked <= 1
        assert self.world.rows(tables.dead_letter, dead.message_id.in_(self.made)) == 0


class Failing(Consumer):
    """A handler fails twice: after the first time the message is retried, after the second it is a dead letter."""

    name, handlers, event = "failing", (shop.FAILING,), shop.PoisonAdded

    def is_done(self) -> bool:
        return self._dead() >= MESSAGES

    def check(self) -> None:
        self.drain()
        assert self._dead() == MESSAGES
        assert not self.world.effects(self.made, shop.FAILING)

    def _dead(self) -> int:
        dead = tables.dead_letter.c
        return self.world.rows(tables.dead_letter, dead.message_id.in_(self.made), dead.attempts == 2)


class OrderedFailing(Failing):
    """A handler of an ordered queue fails twice: its key waits, and the database counts."""

    name, options = "failing-ordered", ("--ordered",)


class Command(Cell):
    """A command of an operator, who runs it again until it has ended well."""

    arguments: tuple[str, ...] = ()

    def start(self, *, through: bool) -> WorkerProcess:
        return self.world.start(COMMAND, *self.arguments, through=through)

    def is_done(self) -> bool:
        process = self.world.processes[-1]
        if process.is_running:
            return False
        if process.wait() != 0:
            self.start(through=False)
            return False
        return True

    def end(self, process: WorkerProcess) -> None:
        """It has ended."""


class Drain(Command, Relay):
    """`relay --drain` publishes the same messages, and ends."""

    arguments = ("relay", "--drain")


class DeadReplay(Command):
    """`dead replay` puts two dead letters back into the outbox, once."""

    arguments = ("dead", "replay", "--all", "--yes")

    def prepare(self) -> None:
        self.failing = Failing(self.world, self.subject)
        self.failing.prepare()
        consumer = self.failing.start(through=False)
        eventually(self.failing.is_done, seconds=BACK_SECONDS)
        assert consumer.stop() == 0

    def check(self) -> None:
        dead, made = tables.dead_letter.c, self.failing.made
        assert self.world.rows(tables.dead_letter, dead.message_id.in_(made), dead.resolution == "replayed") == MESSAGES
        assert self.world.rows(tables.outbox, tables.outbox.c.message_id.in_(made)) == MESSAGES
        self.world.run("relay", "--drain")


class KeptReplay(Command):
    """`republish` publishes two kept messages to one queue again, in order."""

    def prepare(self) -> None:
        self.queue = self.world.client.bind("StepTaken", queue=self.world.queue("replayed"))
        self.made = self.world.add(self.subject)
        self.world.run("relay", "--drain")
        self.world.client.take_all(self.queue)
        self.arguments = ("republish", "--to-queue", self.queue, "--key", self.subject, "--yes")

    def check(self) -> None:
        self.world.client.disconnect()
        found = [each.properties.message_id for each in self.world.client.take_all(self.queue)]
        assert list(dict.fromkeys(found)) == self.made


class Prune(Command):
    """`prune` deletes inbox rows that are old enough, and no others."""

    arguments = ("prune",)

    def prepare(self) -> None:
        old = {"handler": "Old", "type": "T", "attempts": 1, "processed_at": datetime.now(UTC) - timedelta(days=90)}
        with self.world.engine.begin() as connection:
            for row in ({"message_id": f"old {self.subject}"}, {"message_id": f"new {self.subject}"} | NEW):
                connection.execute(tables.inbox.insert().values(old | row))

    def check(self) -> None:
        ids = tables.inbox.c.message_id
        assert self.world.rows(tables.inbox, ids == f"old {self.subject}") == 0
        assert self.world.rows(tables.inbox, ids == f"new {self.subject}") == 1


class PruneDays(Prune):
    """`prune` drops an old day of the inbox and of kept messages, and makes one to come, whose rows move there."""

    def prepare(self) -> None:
        super().prepare()
        today, number = datetime.now(UTC).date(), next(self.world.numbers)
        self.days = today - 40 * DAY, today + 7 * DAY
        self.made = [f"{first_id(day)}-7000-8000-{number:012}" for day in self.days]
        with self.world.engine.begin() as connection:
            for table in (INBOX, PUBLISHED):
                (old, new), day = map(table.partition_of, self.days), self.days[0]
                connection.execute(text(f"DROP TABLE IF EXISTS {old}, {new}"))
                bounds = f"FROM ('{table.bound(day)}') TO ('{table.bound(day + DAY)}')"
                connection.execute(text(f"CREATE TABLE {old} PARTITION OF {table.name} FOR VALUES {bounds}"))
            for id_, day in zip(self.made, self.days, strict=True):
                row, at = {"message_id": id_, "type": "T"}, datetime.combine(day, time(12), UTC)
                connection.execute(tables.inbox.insert().values(row | {"handler": "Days", "processed_at": at}))
                kept = {"published_at": at, "position": number, "payload": b"", "headers": b"", "content_type": "none"}
                connection.execute(tables.published.insert().values(row | kept))

    def check(self) -> None:
        super().check()
        eventually(lambda: self._read("SELECT pid FROM pg_locks WHERE locktype = 'advisory'") == [])
        for table in (INBOX, PUBLISHED):
            there = f"FROM pg_class WHERE relkind = 'r' AND relname LIKE '{table.name}\\_%'"
            partitions = f"FROM pg_inherits WHERE inhparent = '{table.name}'::regclass"
            found = self._read(f"SELECT relname {there} AND oid IN (SELECT inhrelid {partitions})")
            assert sorted(found) == sorted(self._read(f"SELECT relname {there}")), "a partition is not whole"
            places = f"SELECT tableoid::regclass::text FROM {table.name} WHERE message_id = "
            for id_, place in zip(self.made, ([], [table.partition_of(self.days[1])]), strict=True):
                assert self._read(f"{places}'{id_}'") == place
            assert table.partition_of(self.days[0]) not in found

    def _read(self, query: str) -> list[str]:
        with self.world.engine.connect() as connection:
            return list(connection.scalars(text(query)))


class Pausing(Command):
    """`pause` pauses a queue; resumed in the end."""

    def prepare(self) -> None:
        self.arguments = ("pause", f"queue {self.subject}".replace(" ", "-").lower(), "--why", "matrix")

    def check(self) -> None:
        assert self.world.rows(tables.pause, tables.pause.c.name == self.arguments[1]) == 1
        self.world.run("resume", self.arguments[1])


class Resuming(Pausing):
    """`resume` ends the pause of a queue."""

    def prepare(self) -> None:
        super().prepare()
        self.world.run(*self.arguments)
        self.arguments = ("resume", self.arguments[1])

    def check(self) -> None:
        assert self.world.rows(tables.pause, tables.pause.c.name == self.arguments[1]) == 0
        of = tables.audit.c
        ended = (of.action == "resume", of.filter.contains(self.arguments[1]), of.affected == 1)
        assert self.world.rows(tables.audit, *ended) == 1


class Door(Cell):
    """A client posts twice under one key, and repeats each request until it has an answer."""

    factory = "web"

    def prepare(self) -> None:
        self.world.client.bind("StepTaken", queue=self.world.queue("made"))  # for the messages of the requests
        self.answers = dict[int, dict[str, str]]()

    def start(self, *, through: bool) -> WorkerProcess:
        uvicorn = str(Path(COMMAND).with_name("uvicorn"))
        arguments = (uvicorn, f"tests.faults.shop:{self.factory}", "--factory", "--port", str(self.world.port))
        return self.world.start(*arguments, "--log-level", "error", through=through)

    def poke(self) -> None:
        """Send the requests."""
        self.is_done()

    def is_done(self) -> bool:
        with httpx.Client(base_url=f"http://127.0.0.1:{self.world.port}", timeout=5, trust_env=False) as client:
            for number in range(MESSAGES):
                subject = f"{self.subject} {number}"
                headers = {"Idempotency-Key": str(uuid5(NAMESPACE_URL, subject))}
                with suppress(httpx.TransportError):
                    answer = client.post("/steps", params={"subject": subject}, headers=headers)
                    if answer.status_code == 201:
                        self.answers[number] = answer.json()
        return len(self.answers) == MESSAGES

    def check(self) -> None:
        for number, answer in self.answers.items():
            subject = f"{self.subject} {number}"
            assert answer == {"subject": subject}
            assert self.world.rows(shop.Made, shop.Made.subject == subject) == 1
        self.world.run("relay", "--drain")

    def end(self, process: WorkerProcess) -> None:
        """Uvicorn ends by the signal that it has handled."""
        assert process.stop() == -signal.SIGTERM, process.log.read_text()


class AsyncDoor(Door):
    """The same requests, to an endpoint with an `AsyncSession`."""

    factory = "async_web"


class LeasedDoor(Door):
    """The same requests, to an endpoint in steps with a lease, of which one asks a service of somebody else."""

    factory = "leased_web"

    def check(self) -> None:
        for number, answer in self.answers.items():
            subject = f"{self.subject} {number}"
            asked = [each for each in self.world.outside.requests if each.startswith(f"{subject}: ")]
            assert answer == {"subject": subject, "asked": asked[0]}
            assert set(asked) == {asked[0]}
            assert len(asked) == 1 or "final" not in self.subject, "a step that was recorded was made again"
