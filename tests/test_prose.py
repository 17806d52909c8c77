"""Pages about the code name files that are there; `make check` runs this."""

import re
from pathlib import Path

from tests.benchmarks.__main__ import CASES

ROOT = Path(__file__).parents[1]


def test_the_files_that_pages_about_the_code_name_are_there():
    """Paths in contributing and in decisions, from the top or from `outboxkit/`."""
    pages = (ROOT / "docs/contributing.md", *ROOT.glob("docs/decisions/0*.md"))
    named = {(page.name, path) for page in pages for path in re.findall(r"`(\w[\w/]*/\w+\.py)`", page.read_text())}
    missing = [pair for pair in named if not any((ROOT / top / pair[1]).is_file() for top in ("", "outboxkit"))]
    assert sorted(missing) == []


def test_the_modules_of_how_it_works_are_there():
    """Its first table names the modules of each step, below `outboxkit`."""
    page = (ROOT / "docs/explanation/how-it-works.md").read_text()
    table = page.split("| module |")[1].split("\n\n")[0]
    rows = [line.rsplit("|", 2)[1] for line in table.splitlines()[2:]]
    places = [ROOT / "outboxkit" / name.replace(".", "/") for row in rows for name in re.findall(r"`([\w.]+)`", row)]
    assert len(places) > 10
    assert [str(place) for place in places if not (place.is_dir() or place.with_suffix(".py").is_file())] == []


def test_the_cases_of_make_bench_that_pages_name_are_there():
    """In a sentence, as "the case `keys`", or in the table of figures."""
    pages = {page.name: page.read_text() for page in (ROOT / "docs").rglob("*.md")}
    sentences = [(name, says) for name, text in pages.items() for says in re.findall(r"\bcases?\s(`[^.:;|]+)", text)]
    rows = [("performance.md", row) for row in re.findall(r"^\| (`.+?`) \|", pages["performance.md"], re.MULTILINE)]
    named = {(page, name) for page, says in sentences + rows for name in re.findall(r"`([a-z-]+)`", says)}
    assert len(named) > 20
    assert sorted(pair for pair in named if pair[1] not in CASES) == []
