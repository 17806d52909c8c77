"""`outboxkit demo`, small: nothing lost, nothing doubled, and the damage without an inbox."""

import tempfile
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Run


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def counts(out: str) -> dict[str, str]:
    cells = [line.strip("│ ").split("│") for line in out.splitlines() if line.startswith("│")]
    return {name.strip(): count.strip() for name, count in cells}


def test_every_committed_order_has_one_effect(run: Run, temporary_folder: Path):
    ended = run("demo", "--orders", "40")
    assert (ended.code, ended.err) == (0, "")
    found = counts(ended.out)
    assert (found["orders taken"], found["rolled back, so never sent"], found["committed"]) == ("40", "4", "36")
    assert found["effects (receipts in the database)"] == "36"
    assert (found["lost"], found["doubled"]) == ("0", "0")
    assert int(found["again, after the relay crashed before settling"]) > 0
    assert int(found["duplicates caught by the inbox"]) > 0
    assert int(found["deliveries, a fifth of them sent twice"]) == 36 + int(found["duplicates caught by the inbox"])
    assert "Every committed order has exactly one effect." in ended.out
    assert "the README; then docs/tutorial.md" in ended.out.splitlines()[-2]
    assert not list(temporary_folder.iterdir()), "the demo cleans up"


def test_without_an_inbox_the_damage_shows(run: Run):
    ended = run("demo", "--orders", "40", "--without-inbox")
    assert ended.code == 1
    found = counts(ended.out)
    assert found["lost"] == "0"
    assert int(found["doubled"]) > 0
    assert int(found["effects (receipts in the database)"]) == 36 + int(found["doubled"])
    assert "That is what the inbox is for." in ended.out


@pytest.mark.parametrize("orders", ["9", "x", "1000000"])
def test_a_number_that_is_too_small_or_too_large_is_refused(run: Run, orders: str):
    assert run("demo", "--orders", orders).code == 2
