"""What `make docs` cannot see: links of pages outside of docs/, the heads of decisions, what a diagram is made of."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
DIAGRAMS = sorted((ROOT / "docs" / "diagrams").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"


def anchors(page: Path) -> set[str]:
    """The places of a page that a link may lead to, as a code host names them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md"])
def test_anchors_of_pages_outside_are_there(page: str) -> None:
    links = re.findall(r"\]\(([^):]+\.md)#([^)]+)\)", (ROOT / page).read_text())
    assert [(target, place) for target, place in links if place not in anchors(ROOT / target)] == []


def test_every_decision_has_the_number_of_its_file_and_says_for_whom_it_is() -> None:
    pages = {path.name: path.read_text() for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md")}
    assert len(pages) > 30
    assert [name for name, text in pages.items() if not text.startswith(f"# {int(name[:4])}. ")] == []
    assert [name for name, text in pages.items() if not re.search(r"^Status: accepted, for ", text, re.MULTILINE)] == []


@pytest.mark.parametrize("path", DIAGRAMS, ids=lambda path: path.stem)
def test_a_diagram_needs_nobody_else_and_says_what_it_shows(path: Path) -> None:
    root = ElementTree.parse(path).getroot()
    names = [root.find(f"{SVG}{part}") for part in ("title", "desc")]
    assert all(name is not None and name.text for name in names)
    assert root.get("aria-labelledby", "").split() == [name.get("id") for name in names]
    assert not re.search(r"href|url\(|@import|<script|#[0-9a-f]{3,8}(?=\")", path.read_text())


def test_every_diagram_is_on_a_page() -> None:
    text = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    assert len(DIAGRAMS) >= 5
    assert [path.name for path in DIAGRAMS if f"diagrams/{path.name})" not in text] == []
