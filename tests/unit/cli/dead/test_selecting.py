"""The filters of the commands about dead letters."""

from datetime import timedelta

import pytest

from outboxkit.cli.dead.selecting import Filters, with_ids
from outboxkit.errors import ConfigurationError
from outboxkit.operators.deadletters import Selection
from tests.unit.cli.conftest import Run
from tests.unit.shop import NOW


def test_arguments_and_filters_are_one_selection():
    filters = Filters("T", "k", "expired", "outbox", "payments", until="1h", since="1d")
    assert with_ids(filters.selection(NOW, resolved=True), ("8", "m-1")) == Selection(
        numbers=(8,),
        message_ids=("m-1",),
        type="T",
        key="k",
        reason="expired",
        side="outbox",
        destination="payments",
        before=NOW - timedelta(hours=1),
        since=NOW - timedelta(days=1),
        resolved=True,
    )


@pytest.mark.parametrize(
    ("option", "value", "accepted"),
    [
        ("--side", "both", "outbox or inbox"),
        ("--until", "3", "or a duration such as"),
        ("--since", "yesterday", "or a duration such as"),
        ("--reason", "nonsense", "unroutable, rejected, expired, failed, undecodable"),
    ],
)
def test_a_bad_filter_is_one_line(run: Run, option: str, value: str, accepted: str):
    ended = run("dead", "list", option, value, "--database-url", "sqlite:///shop.db")
    assert (ended.code, ended.out) == (2, "")
    (line,) = ended.err.splitlines()
    assert line.startswith(f"outboxkit: {option} is {value!r}: ")
    assert accepted in line


@pytest.mark.parametrize("name", ["handler", "error"])
def test_an_empty_text_is_no_filter_that_matches_everything(name: str):
    with pytest.raises(ConfigurationError, match=f"--{name} is empty"):
        Filters(**{name: ""})


@pytest.mark.parametrize(
    "command", [("dead", "list"), ("dead", "replay", "--yes"), ("republish", "--to-queue", "q", "--yes")]
)
def test_a_period_that_ends_before_it_begins_is_refused(run: Run, command: tuple[str, ...]):
    """Nothing would match, and "no open dead letter matches" is what an operator would believe."""
    ended = run(*command, "--since", "1h", "--until", "2h", "--database-url", "sqlite:///shop.db")
    line = "outboxkit: --since 1h is later than --until 2h: exchange them\n"
    assert (ended.code, ended.out, ended.err) == (2, "", line)
