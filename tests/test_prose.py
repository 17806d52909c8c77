"""Pages about the code name files that are there; `make check` runs this."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_files_that_pages_about_the_code_name_are_there():
    """Paths in contributing and in decisions, from the top or from `outboxkit/`."""
    pages = (ROOT / "docs/contributing.md", *ROOT.glob("docs/decisions/0*.md"))
    named = {(page.name, path) for page in pages for path in re.findall(r"`(\w[\w/]*/\w+\.py)`", page.read_text())}
    missing = [pair for pair in named if not any((ROOT / top / pair[1]).is_file() for top in ("", "outboxkit"))]
    assert sorted(missing) == []
