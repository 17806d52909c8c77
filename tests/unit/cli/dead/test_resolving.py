"""`outboxkit dead replay` and `outboxkit dead discard`: what they refuse, ask and say."""

import io
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine

from outboxkit import ids
from outboxkit.operators.deadletters import DeadLetters, ReplayRules, Resolved
from tests.integration.operators.dead_rows import buried, dead, fill, letters, outbox_rows
from tests.unit.cli.conftest import Run

pytestmark = pytest.mark.usefixtures("at")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Interrupted(Terminal):
    """One on which somebody presses Ctrl-C."""

    def readline(self, size: int | None = -1, /) -> str:
        raise KeyboardInterrupt


def untouched(engine: Engine) -> bool:
    return not outbox_rows(engine) and all(row.resolution is None for row in letters(engine).values())


@pytest.mark.parametrize("command", ["replay", "discard"])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "which dead letters? Exactly one is accepted: ids, filters"),
        (["--all", "1"], "Exactly one is accepted: ids, filters such as"),
        (["--all", "--type", "T"], "Exactly one is accepted: ids, filters such as"),
        (["1", "--type", "T"], "Exactly one is accepted: ids, filters such as"),
        (["99"], "no dead letter is '99'"),
        (["1", "m-2"], "no dead letter is 'm-2'; "),
    ],
)
def test_a_command_that_may_mean_too_much_is_refused(
    run: Run, engine: Engine, command: str, arguments: list[str], said: str
):
    fill(engine, [dead(1)])
    ended = run("dead", command, *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err
    assert untouched(engine)


OLD = ids.new(at=datetime.now(UTC) - timedelta(days=15))


@pytest.mark.parametrize(
    ("command", "arguments"),
    [("replay", ["2"]), ("replay", ["--side", "inbox"]), ("discard", ["x"]), ("discard", ["--reason", "failed"])],
)
def test_the_chosen_ones_alone_are_resolved(run: Run, engine: Engine, command: str, arguments: list[str]):
    fill(engine, [dead(1)])
    fill(engine, [buried("x")])
    done = {"replay": "replayed", "discard": "discarded"}[command]
    ended = run("dead", command, "--yes", "--by", "bea", *arguments)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == f"1 dead letter to {command}:\n  1 OrderConfirmed (inbox, failed)\n{done} 1 of 1 by bea\n"
    assert [row.resolution for row in letters(engine).values()] == [None, done]


def test_what_is_refused_is_counted_and_explained(run: Run, engine: Engine):
    fill(engine, [buried("x"), buried(OLD), buried(None), buried(OLD, handler="H")])
    ended = run("dead", "replay", "--yes", "--all")
    assert ended.code == 3
    said = ended.out.splitlines()
    assert said[:2] == ["1 dead letter to replay:", "  1 OrderConfirmed (inbox, failed)"]
    assert said[2].startswith("refused: 2, stale: older than the inbox is sure to remember")
    assert said[3].startswith("refused: 1, malformed: it has no id or no type")
    assert said[4] == "replayed 1 of 1 by ada"
    stale, malformed = ended.err.splitlines()
    assert stale.startswith("outboxkit: not replayed: 2, stale: older than")
    assert malformed.startswith("outboxkit: not replayed: 1, malformed: it has no id")


def test_nothing_but_refused_ones_is_not_done(run: Run, engine: Engine):
    fill(engine, [buried(OLD)])
    assert run("dead", "replay", "--yes", "--all", "--dry-run").code == 0
    ended = run("dead", "replay", "--yes", "--all")
    assert ended.code == 3
    assert ended.out.startswith("0 dead letters to replay\nrefused: 1, stale: ")
    assert untouched(engine)


def test_a_replay_asks_unless_yes_is_given(run: Run, engine: Engine, monkeypatch: pytest.MonkeyPatch):
    fill(engine, [dead(1)])
    ended = run("dead", "replay", "1")
    assert (ended.code, "nothing was replayed: add --yes" in ended.err) == (2, True)
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    ended = run("dead", "replay", "1")
    assert (ended.code, "Replay them?" in ended.out + ended.err) == (1, True)
    assert untouched(engine)
    monkeypatch.setattr("sys.stdin", Interrupted())
    assert run("dead", "replay", "1").code == 130
    assert untouched(engine)
    assert "Replay them?" not in run("dead", "replay", "--yes", "1").out
    assert not untouched(engine)


@pytest.mark.parametrize("command", ["replay", "discard"])
def test_what_dies_after_the_plan_was_shown_is_left(
    run: Run, engine: Engine, monkeypatch: pytest.MonkeyPatch, command: str
):
    class Late(Terminal):
        def readline(self, size: int | None = -1, /) -> str:
            fill(engine, [dead(2)])
            return "y\n"

    fill(engine, [dead(1)])
    monkeypatch.setattr("sys.stdin", Late())
    ended = run("dead", command, "--all")
    assert (ended.code, "1 of 1 by ada" in ended.out) == (0, True)
    assert [row.resolution is None for row in letters(engine).values()] == [False, True]


def test_a_discard_does_not_judge_what_it_gives_up(run: Run, engine: Engine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ReplayRules, "refusal", None)
    fill(engine, [buried(OLD)])
    fill(engine, [dead(1)])
    assert run("dead", "discard", "--all", "--yes").out.endswith("discarded 2 of 2 by ada\n")


def test_a_stop_in_the_middle_says_what_goes_on(run: Run, engine: Engine, monkeypatch: pytest.MonkeyPatch):
    async def stopped(_: object, __: str, ___: object, ____: object, done: Resolved, *, upto: int) -> None:
        done.count, done.by = 1, "ada"

    fill(engine, [dead(1), dead(2)])
    monkeypatch.setattr(DeadLetters, "resolve", stopped)
    ended = run("dead", "discard", "--all", "--yes")
    assert ended.code == 3
    assert ended.out.splitlines()[-1] == "discarded 1 of 2 by ada"
    assert ended.err == "stopped before the end: the same command goes on\n"


def test_a_replay_keeps_to_its_rate(run: Run, engine: Engine, monkeypatch: pytest.MonkeyPatch):
    kept: list[tuple[float | None, int]] = []

    async def keep(rate: float | None, count: int, *_: object) -> None:
        kept.append((rate, count))

    monkeypatch.setattr("outboxkit.operators.deadletters.keep_to_rate", keep)
    fill(engine, [dead(1), dead(2)])
    assert run("dead", "replay", "--all", "--yes", "--rate", "1").code == 0
    assert kept == [(1, 1), (1, 2)]
