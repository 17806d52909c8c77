"""Progress of a long command."""

from dataclasses import dataclass

import pytest

from outboxkit.cli.wording import SAY_EVERY, now_and_then


@dataclass
class Done:
    count: int


def test_a_line_each_time_that_so_many_more_are_done(capsys: pytest.CaptureFixture[str]):
    show = now_and_then(lambda done: f"replayed {done.count}")
    for count in (1, SAY_EVERY - 1, SAY_EVERY, SAY_EVERY + 1, 3 * SAY_EVERY, 4 * SAY_EVERY - 1, 4 * SAY_EVERY):
        show(Done(count))
    lines = [f"replayed {count}" for count in (SAY_EVERY, 3 * SAY_EVERY, 4 * SAY_EVERY)]
    assert capsys.readouterr().err.splitlines() == lines
