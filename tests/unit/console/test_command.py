"""`outboxkit console`, the command."""

import socket

import pytest

from outboxkit.cli import console
from outboxkit.console import serving
from outboxkit.errors import ConfigurationError
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


def test_a_port_that_is_taken_is_told_in_plain_words(database_url: str):
    settings = load({"database_url": database_url})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"^--port is {port}: Address already in use; a free port"):
            serving.serve(settings, port=port, user="ann", may=("read",), also=(), say=print)
