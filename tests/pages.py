"""The pages of the documentation, and the code blocks on them."""

import re
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import make_url

ROOT = Path(__file__).parents[1]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")))
BLOCK = re.compile(
    r'^(?:```|<!-- )(?P<language>[a-z]+)(?P<words>(?: [a-z-]+)*)(?: title="(?P<title>[^"]+)")?\n'
    r"(?P<body>.*?)^(?:```|-->)$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block, or one in an HTML comment."""

    language: str
    words: tuple[str, ...]
    title: str | None
    body: str
    line: int


def blocks(page: str) -> list[Block]:
    """All blocks of a page, in their order."""
    text = (ROOT / page).read_text()
    return [
        Block(
            found["language"],
            tuple(found["words"].split()),
            found["title"],
            found["body"],
            text.count("\n", 0, found.start()) + 2,
        )
        for found in BLOCK.finditer(text)
    ]


def libpq(url: str) -> str:
    """A database URL as psycopg itself reads it."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
