"""`outboxkit console`, the command."""

import pytest

from outboxkit.cli import console
from outboxkit.runtime.settings import load


@pytest.mark.parametrize(
    ("url", "why"),
    [("sqlite:///none.db", "no file none.db"), ("postgresql://u:hunter2@127.0.0.1:1/shop", "Connection refused")],
)
async def test_it_says_why_its_pages_show_nothing(url: str, why: str, capsys: pytest.CaptureFixture[str]):
    await console._warn(load({"database_url": url}))
    said = capsys.readouterr().err
    assert why in said
    assert "hunter2" not in said


async def test_it_says_nothing_if_all_is_there(database_url: str, capsys: pytest.CaptureFixture[str]):
    await console._warn(load({"database_url": database_url}))
    assert capsys.readouterr().err == ""
