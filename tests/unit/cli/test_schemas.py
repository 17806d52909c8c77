"""`outboxkit schema`: a folder of schemas, written and compared with the classes."""

import json
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Run
from tests.unit.operators.schemas.releases import release

ORDER = "@event('OrderPlaced'{})\n@dataclass\nclass OrderPlaced:\n    number: {}\n"
HANDLER = "@inbox_handler('Book')\ndef book(session, event: OrderPlaced): ...\n"
CURE = (
    "raise the version, @event('OrderPlaced', version=2), and write @upcast('OrderPlaced', 1) for messages of version 1"
)
BREAKING = f"BREAKING OrderPlaced: number was integer, and is string\n         {CURE}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "schemas"


def order(kind: str = "int", options: str = "", more: str = "") -> str:
    return release(ORDER.format(options, kind) + more).__name__


def test_what_was_exported_is_compared_and_exported_again(run: Run):
    ended = run("schema", "export", order(more=HANDLER))
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == "wrote schemas/OrderPlaced/1.json\n"
    assert run("schema", "export", order(more=HANDLER)).out == "schemas is up to date\n"
    ended = run("schema", "check", order(more=HANDLER))
    assert (ended.code, ended.out) == (0, "no change breaks a consumer\n")
    ended = run("schema", "check", order("int | None"))
    assert ended.code == 0
    assert ended.out.splitlines() == [
        "ok       OrderPlaced: number also accepts null",
        "         deploy consumers first: an old one may not read it",
        "no change breaks a consumer; export them again",
    ]


def test_a_change_that_breaks_consumers_fails_and_is_not_exported(run: Run, folder: Path):
    run("schema", "export", order())
    before = (folder / "OrderPlaced" / "1.json").read_text()
    ended = run("schema", "check", order("str"))
    assert (ended.code, ended.out) == (1, f"{BREAKING}1 change would break consumers\n")
    ended = run("schema", "export", order("str"))
    assert (ended.code, ended.out) == (1, BREAKING)
    assert ended.err == "nothing was written. If no message of the exported version was ever sent: --force\n"
    assert (folder / "OrderPlaced" / "1.json").read_text() == before
    assert run("schema", "export", order("str"), "--force").code == 0
    assert run("schema", "check", order("str")).code == 0


def test_json_has_every_finding(run: Run):
    run("schema", "export", order(), "--dir", "here")
    ended = run("schema", "check", order("str"), "--dir", "here", "--json")
    found = json.loads(ended.out)
    assert (ended.code, found["breaking"]) == (1, 1)
    assert found["findings"][0] == {
        "event": "OrderPlaced",
        "text": "number was integer, and is string",
        "cure": CURE,
        "breaking": True,
    }


def test_what_cannot_be_done_is_one_line(run: Run, folder: Path):
    ended = run("schema", "check", order())
    assert (ended.code, ended.err) == (
        2,
        "outboxkit: 'schemas' has no schemas: write them first, with `outboxkit schema export`\n",
    )
    assert "no module named 'nowhere'" in run("schema", "export", "nowhere").err
    folder.write_text("a file")
    ended = run("schema", "export", order())
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("outboxkit: schemas/OrderPlaced/1.json cannot be written: ")
