"""What the demo prints of a tally."""

import pytest
from rich.console import Console

from outboxkit.cli.demo import story
from outboxkit.cli.demo.story import Tally


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Console:
    made = Console(record=True, width=120, quiet=False, highlight=False)
    monkeypatch.setattr(story, "_console", made)
    return made


def test_a_right_tally(console: Console):
    story.result(Tally(taken=10, orders=9, effects=9, orders_with_effect=9, duplicates=2), with_inbox=True)
    text = console.export_text()
    assert "Every committed order has exactly one effect." in text
    assert "outboxkit consume shop.handlers --queue billing" in text


@pytest.mark.parametrize("with_inbox", [True, False])
def test_a_wrong_tally_says_what_is_wrong(console: Console, with_inbox: bool):
    story.result(Tally(orders=9, effects=11, orders_with_effect=8, invented=1), with_inbox=with_inbox)
    text = console.export_text()
    assert "Effects: 1 lost, 2 doubled, 1 invented." in text
    assert ("That is what the inbox is for." in text) is not with_inbox
    assert ("no inbox" in text) is not with_inbox
