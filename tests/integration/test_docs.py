"""Every code block of the README and of docs/ runs: in the order of its page, in an empty folder, on real servers.

What stands behind a block's language says how: `title="shop/models.py"` appends the block to that file instead of
running it, `drain` gives every relay and consumer of the block its --drain, `output` is what the block before printed
(`...` stands for anything), and `no-run` is for what a test cannot do, such as starting Docker. Blocks in an HTML
comment (`<!-- python … -->`) run too: they set up what a fragment needs, or check what it did.
"""

import ast
import asyncio
import contextlib
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import psycopg
import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.delays import DELAYS_TEXT
from tests.pages import PAGES, ROOT, Block, blocks, libpq
from tests.plain_client import PlainClient
from tests.processes import programs

WITH_OWN_SHOP = ("README.md", "docs/tutorial.md")
"""Every other page begins where the tutorial has written its files."""
BY_DAY = (*WITH_OWN_SHOP, "docs/how-to/handle-dead-letters.md")
"""Whose blocks run by day too."""
SECONDS = 90
QUEUE, EXCHANGE = "billing", "outboxkit"
"""The names that the pages use: each run has its own, on servers that it may share."""


class Reader:
    """Somebody who types what a page says, from its top to its end."""

    def __init__(self, page: str, folder: Path, database_url: str, names: dict[str, str]) -> None:
        self.page = page
        self.folder = folder
        self.database_url = database_url
        self.names = names
        self.printed = ""
        self.module = ModuleType("page")
        self.loop = asyncio.Runner()

    def follow(self, block: Block) -> None:
        if "no-run" in block.words:
            return
        body = self.with_own_names(block.body)
        if block.title is not None:
            path = self.folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(("\n\n" if file.tell() else "") + body)
        elif block.language == "python":
            self.printed = self.run_python(body, block.line)
        elif block.language == "sh":
            self.printed = self.run_sh(body, block)
        elif block.language == "sql":
            self.run_sql(body)
        elif "output" in block.words:
            self.compare(body, block.line)
        else:
            assert block.language == "text", f"{self.page}:{block.line}: nothing runs a block of {block.language}"

    def with_own_names(self, body: str) -> str:
        body = re.sub(rf"\b{QUEUE}\b", self.names[QUEUE], body)
        return body.replace(f'"{EXCHANGE}"', f'"{self.names[EXCHANGE]}"')

    def run_python(self, body: str, line: int) -> str:
        tree = ast.parse(body, f"{self.page} (from line {line})")
        code = compile(tree, f"{self.page} (from line {line})", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            pending = eval(code, self.module.__dict__)
            if pending is not None:
                self.loop.run(pending)
        return printed.getvalue()

    def run_sh(self, body: str, block: Block) -> str:
        if "drain" in block.words:
            body = re.sub(r"^outboxkit (relay|consume)", r"outboxkit \1 --drain", body, flags=re.MULTILINE)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        shell = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", body], cwd=self.folder, text=True, start_new_session=True, **pipes
        )
        try:
            out, err = shell.communicate(timeout=SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):  # what a failed block left running
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
        assert shell.returncode == 0, f"{self.page}:{block.line}: exit {shell.returncode}\n{out}\n{err}"
        return out

    def run_sql(self, body: str) -> None:
        # In a transaction that is undone, because roles belong to the whole server.
        with psycopg.connect(libpq(self.database_url)) as connection:
            connection.execute(body)
            connection.rollback()

    def forget(self, module: ModuleType) -> None:
        for value in vars(module).values():
            if isinstance(value, Engine):
                value.dispose()
            elif isinstance(value, AsyncEngine):
                self.loop.run(value.dispose())

    def compare(self, expected: str, line: int) -> None:
        wanted = ".*".join(re.escape(part) for part in without_trailing_blanks(expected).split("..."))
        found = without_trailing_blanks(self.printed)
        assert re.fullmatch(wanted, found, re.DOTALL), f"{self.page}:{line}: found\n{found}\ninstead of\n{expected}"


def without_trailing_blanks(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


@pytest.fixture
def environment(
    empty_postgresql_url: str, broker: PlainClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in os.environ if name.startswith("OUTBOXKIT_")]:
        monkeypatch.delenv(name)
    settings = {
        "DATABASE_URL": empty_postgresql_url,
        "BROKER_URL": broker.url,
        "EXCHANGE": broker.exchange,
        "RETRY_DELAYS": DELAYS_TEXT,
    }
    for name, value in settings.items():
        monkeypatch.setenv(f"OUTBOXKIT_{name}", value)
    path = (str(programs()), str(Path(sys.executable).parent), os.environ["PATH"])
    monkeypatch.setenv("PATH", os.pathsep.join(path))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture
def reader(
    page: str, environment: None, empty_postgresql_url: str, broker: PlainClient, tmp_path: Path
) -> Iterator[Reader]:
    before = set(sys.modules)
    reader = Reader(page, tmp_path, empty_postgresql_url, {QUEUE: broker.queue, EXCHANGE: broker.exchange})
    sys.modules["page"] = reader.module  # where dataclasses and SQLAlchemy look up annotations
    if page not in WITH_OWN_SHOP:
        for block in blocks("docs/tutorial.md"):
            if block.title is not None:
                reader.follow(block)
    with reader.loop:
        yield reader
        for name in sorted(set(sys.modules) - before):
            if name.partition(".")[0] in ("page", "shop"):
                reader.forget(sys.modules.pop(name))


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=() if page in BY_DAY else pytest.mark.night) for page in PAGES]
)
def test_blocks_run(page: str, reader: Reader) -> None:
    for block in blocks(page):
        reader.follow(block)


@pytest.mark.parametrize("page", PAGES)
def test_every_fence_is_found(page: str) -> None:
    """A block that is indented or misspelt would be passed over in silence."""
    fences = re.findall(r"^\s*```.*$", (ROOT / page).read_text(), re.MULTILINE)
    visible = len(fences) // 2
    assert len(fences) % 2 == 0
    assert visible <= len(blocks(page))


def test_few_blocks_are_exempt() -> None:
    exempt = [block for page in PAGES for block in blocks(page) if "no-run" in block.words]
    assert len(exempt) <= 10


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"


@pytest.mark.parametrize("page", PAGES)
def test_proofs_exist(page: str) -> None:
    """What a page links as the test of a promise is a test function of that file."""
    for name, target in re.findall(r"\[`(test_\w+)`\]\(([^)]+\.py)\)", (ROOT / page).read_text()):
        tree = ast.parse(((ROOT / page).parent / target).read_text())
        assert name in {node.name for node in ast.walk(tree) if hasattr(node, "name")}, f"{page}: {name} in {target}"


def test_every_promise_has_a_proof() -> None:
    text = (ROOT / "docs/explanation/guarantees.md").read_text()
    promises = re.findall(r"^## \d+\. .*?\n(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL)
    assert len(promises) == 11
    for promise in promises:
        bullets = re.findall(r"^\* (.*?)(?=^\S|\n\n)", promise, re.MULTILINE | re.DOTALL)
        assert bullets
        assert all("[`test_" in bullet for bullet in bullets), promise
