"""The bench on which handlers are tried: their database, the rows from which each trial begins, and what came of it."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from outboxkit import Message, ids, schema
from outboxkit.errors import ConfigurationError, SchemaError
from outboxkit.inbox import Handler
from outboxkit.runtime import urls
from outboxkit.testing.database import Contents, TrialDatabase
from outboxkit.testing.differences import Changes, State, changes
from outboxkit.testing.messages import message_of
from outboxkit.testing.outside import Recorder
from outboxkit.testing.reading import SEQUENCES, read_state
from outboxkit.testing.sending import ANSWERED, Answers
from outboxkit.testing.trial import Ending, Trial
from outboxkit.testing.trials import Trials

ATTEMPTS = 5


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
        """Go back to the start."""
        self.database.restore(self.start)
        self.recorder.reset()

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

    def settle(self, message: Message) -> Trial:
        """Deliver a message until no error ends it, as a consumer does; in vain after some attempts."""
        for _ in range(ATTEMPTS - 1):
            if (delivery := self.deliver(message)).error is None:
                return delivery
        return self.deliver(message)

    def state(self) -> State:
        """The rows of all tables now, and all that was done outside."""
        return {**read_state(self.database), **self.recorder.state()}

    def changes(self) -> Changes:
        """The changes since the start."""
        result = changes(self._before, self.state(), self.ignore)
        if not self.has_sequences:
            result.pop(SEQUENCES, None)
        return result

    def has_changes(self) -> bool:
        """Whether anything has changed, also of what is not compared."""
        return bool(changes(self._before, self.state()))

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
    watch: Callable[[], object] | None = None,
    answers: Answers | None = None,
) -> Iterator[Bench]:
    """A bench on the engine's database, whose rows are put back in the end.

    Raises:
        ConfigurationError: the engine cannot be used for this, or its database has no tables of outboxkit. Or there
            is no answer of such a name.
    """
    if unknown := sorted(set(answers or ()) - set(ANSWERED)):
        raise ConfigurationError(f"answers[{unknown[0]!r}] is unknown; {', '.join(map(repr, ANSWERED))} are answered")
    patterns = (ignore,) if isinstance(ignore, str) else ignore
    database = TrialDatabase(engine)
    try:
        _check_tables(database)
        start = database.save()
        recorder = Recorder(handler.function, database.url, watch, answers)
        with recorder, Trials(database, recorder) as trials:
            bench = Bench(trials, database, recorder, handler, event, start=start, ignore=patterns)
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
