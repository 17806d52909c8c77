"""The bench on which handlers are tried: their database, the rows from which each trial begins, and what came of it."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from inspect import unwrap
from pathlib import Path
from typing import Any

from outboxkit import Message, ids, schema
from outboxkit.errors import ConfigurationError, SchemaError
from outboxkit.inbox import Handler
from outboxkit.runtime import urls
from outboxkit.testing.database import Contents, TrialDatabase
from outboxkit.testing.differences import Changes, State, changes
from outboxkit.testing.memory import Memory
from outboxkit.testing.messages import message_of
from outboxkit.testing.outside import Recorder
from outboxkit.testing.reading import SEQUENCES, read_state
from outboxkit.testing.trials import Ending, Trial, Trials

ATTEMPTS = 5
PATIENCE = 60.0
"""Seconds after which a delivery that does not end is given up."""


@dataclass
class Bench:
    """A handler and its event, with the rows from which each trial begins.

    Attributes:
        varied: the columns whose values differ between two single deliveries.
        expected: the changes by one delivery.
        statements: the number of the handler's statements.
        reads: the numbers of those that only read.
        has_effects: whether one delivery changes anything.
        has_sequences: whether sequences are compared. They go on after a rollback, too, so that their numbers mean
            nothing if they are in rows.
    """

    trials: Trials
    database: TrialDatabase
    recorder: Recorder
    handler: Handler
    event: object
    start: Contents
    memory: Memory
    watch: Callable[[], object] | None = None
    ignore: Collection[str] = ()
    varied: dict[str, set[str]] = field(default_factory=dict)
    expected: Changes = field(default_factory=dict)
    statements: int = 0
    reads: list[int] = field(default_factory=list)
    has_effects: bool = False
    has_sequences: bool = False

    def __post_init__(self) -> None:
        self._before: State = self.state()

    def reset(self) -> None:
        """Go back to the rows of the start."""
        self.database.restore(self.start)

    def message(self, event: object | None = None) -> Message:
        """A new message with the event."""
        content = self.event if event is None else event
        return replace(content, id=ids.new()) if isinstance(content, Message) else message_of(content)

    def deliver(
        self, message: Message, ending: Ending = Ending.COMMIT, *, handler: Handler | None = None, **options: Any
    ) -> Trial:
        """Deliver a message, to the end."""
        return self.trials.run(Trial(message, ending, **options), handler or self.handler)

    def start_delivery(self, message: Message, ending: Ending = Ending.COMMIT, pause: int = 0) -> Trial:
        """Begin a delivery."""
        return self.trials.start(Trial(message, ending, pause=pause), self.handler)

    def wait(self, delivery: Trial) -> Trial:
        """Wait for the end of a delivery that was begun."""
        return self.trials.wait(delivery, self.handler)

    def settle(self, message: Message) -> Trial:
        """Deliver a message until no error ends it, as a consumer does; in vain after some attempts."""
        for _ in range(ATTEMPTS - 1):
            if (delivery := self.deliver(message)).error is None:
                return delivery
        return self.deliver(message)

    def state(self) -> State:
        """The rows of all tables now."""
        return read_state(self.database)

    def remembered(self) -> dict[str, str]:
        """The variables that the handler reaches, and what is watched; files that it keeps open are written."""
        for file in self.memory.open_files():
            with suppress(OSError, ValueError):  # a disk that is full, or a file that another thread closes
                file.flush()
                if isinstance(path := getattr(file, "name", None), str) and Path(path).is_file():
                    self.recorder.note(str(Path(path).resolve()))
        watched = {"what is watched": repr(self.watch())} if self.watch is not None else {}
        return {name: value for name, value in (self.memory.state() | watched).items() if not self._ignores(name)}

    def _ignores(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.ignore)

    def changes(self) -> Changes:
        """The changes since the start."""
        result = changes(self._before, self.state(), self.ignore)
        if not self.has_sequences:
            result.pop(SEQUENCES, None)
        return result

    def has_changes(self) -> bool:
        """Whether anything has changed, also of what is not compared, or was done outside."""
        return self.recorder.acted or bool(changes(self._before, self.state()))

    def look_for_sequences(self) -> None:
        """Compare sequences from now on, if nothing else has changed."""
        self.has_sequences = changes(self._before, self.state(), self.ignore).keys() == {SEQUENCES}


@contextmanager
def open_bench(
    handler: Handler,
    event: object,
    *,
    engine: Any,
    ignore: Collection[str] = (),
    outside: Collection[str] = (),
    watch: Callable[[], object] | None = None,
    patience: float = PATIENCE,
) -> Iterator[Bench]:
    """A bench on the engine's database, whose rows are put back in the end. Other processes of tests wait meanwhile.

    Raises:
        ConfigurationError: the engine cannot be used for this, or its database has no tables of outboxkit.
    """
    ignored, allowed = ((each,) if isinstance(each, str) else each for each in (ignore, outside))
    database = TrialDatabase(engine)
    try:
        _check_tables(database)
        with database.alone():
            start = database.save()
            recorder = Recorder(getattr(unwrap(handler.function), "__code__", None), allowed)
            with recorder, Trials(database, recorder, patience) as trials:
                memory = Memory(handler.function)
                bench = Bench(trials, database, recorder, handler, event, start, memory, watch, ignored)
                try:
                    yield bench
                finally:
                    bench.reset()
    finally:
        database.close()


def _check_tables(database: TrialDatabase) -> None:
    engine = database.sync_engine()
    try:
        with engine.connect() as connection:
            schema.check(connection)
    except SchemaError as error:
        raise ConfigurationError(
            f"the database of the test, {urls.shown(database.url)}, cannot be used: {error}. In a test, "
            "outboxkit.metadata.create_all(engine) creates the tables, or the fixture outboxkit_database has them"
        ) from error
    finally:
        engine.dispose()
