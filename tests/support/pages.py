"""The pages of the documentation, read as a reader reads them: only what is visible counts.

What a page may hold, and nothing else:

* One paragraph that begins with **Start from**, in front of the first block. It names an empty folder, or step 3 of the
  tutorial, and the servers, if any are needed. Only the
  tutorial has blocks in front of it: they install, and name the servers.
* A block after "put this in `shop/handlers.py`:" is that file. After "add this to `shop/handlers.py`:" it goes to the
  file's end.
* Any other `python` block is typed into one Python shell, `python -m asyncio`, which stays open for the page:
  `tests/support/python_shell.py` stands for it.
* An `sh` block is typed into a shell, an `sql` block into psql.
* A `text` block directly behind another block is what that one prints. `...` stands for a part of a line,
  and alone on a line for any number of lines.
* A `text` block after a line that ends with "like this:" is an example of something that is not typed.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import make_url

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")))
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>.*)\n(?P<body>(?:.*\n)*?) *```$", re.MULTILINE)
START = re.compile(r"^\*\*Start from\*\* .+?(?=\n\n)", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"\b(?P<verb>put this in|add this to) `(?P<path>[^`]+)`:\Z", re.IGNORECASE)
TYPED = ("python", "sh", "sql")


class UnclearPage(Exception):
    """A page has something that its reader cannot see or would not know what to do with."""


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        kind: `file`, `more` (of a file), `python`, `sh`, `sql`, `output` or `example`.
        path: of the file.
        line: where its body begins.
    """

    kind: str
    body: str
    line: int
    path: str = ""


@dataclass(frozen=True)
class Page:
    """A page: what it starts from, how to get there, and what is typed then."""

    name: str
    start: str
    before: tuple[Block, ...]
    blocks: tuple[Block, ...]


def read(name: str) -> Page:
    """A page of the repository. Raises UnclearPage."""
    return parse(name, (ROOT / name).read_text())


def blocks(name: str) -> tuple[Block, ...]:
    """The blocks of a page that are typed, and their output."""
    return read(name).blocks


def parse(name: str, text: str) -> Page:
    """A page from its text. Raises UnclearPage."""
    for comment in re.finditer(r"<!--", text):
        raise UnclearPage(f"{name}:{_line(text, comment.start())}: a comment, which no reader sees")
    every = list(_blocks(name, text))
    if 2 * len(every) != len(re.findall(r"^ *(?:```|~~~)", text, re.MULTILINE)):
        raise UnclearPage(f"{name}: a fence without its end, or of tildes")
    starts = list(START.finditer(FENCE.sub(lambda fence: re.sub(r"[^\n]", "-", fence[0]), text)))
    if not every:
        return Page(name, "", (), ())
    if len(starts) != 1:
        raise UnclearPage(f"{name}: {len(starts)} paragraphs begin with **Start from**")
    line = _line(text, starts[0].start())
    before = tuple(block for block in every if block.line < line)
    return Page(name, " ".join(starts[0][0].split()), before, tuple(block for block in every if block.line > line))


def _blocks(name: str, text: str) -> Iterator[Block]:
    end, previous = 0, "example"
    for fence in FENCE.finditer(text):
        line = _line(text, fence.start()) + 1
        prose, end = text[end : fence.start()], fence.end()
        if fence["indent"] or fence["info"] not in (*TYPED, "text"):
            raise UnclearPage(f"{name}:{line}: a fence that is indented, or {fence['info']!r} behind it")
        kind, path = _kind(fence["info"], prose, previous)
        if not kind:
            raise UnclearPage(f"{name}:{line}: neither a file, nor typed, nor printed by the block in front of it")
        previous = kind
        yield Block(kind, fence["body"], line, path)


def _kind(language: str, prose: str, previous: str) -> tuple[str, str]:
    words = " ".join(prose.split())
    file = FILE.search(words)
    if file is not None:
        return ("file" if file["verb"].lower() == "put this in" else "more"), file["path"]
    if language != "text":
        return language, ""
    if not words and previous in TYPED:
        return "output", ""
    return ("example" if words.endswith("like this:") else ""), ""


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def libpq(url: str) -> str:
    """A database URL as psycopg itself reads it."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
