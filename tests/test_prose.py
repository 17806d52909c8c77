"""The rules of prose hold in every file; `make check` runs this."""

import re

import pytest

from tests import prose


def test_prose_reads_at_first_sight():
    """The rules are in docs/contributing.md; `python -m tests.prose FILE` lists what a file still has."""
    offenders = [offender for path in prose.files() for offender in prose.offenders(path)]
    assert "\n".join(map(str, offenders)) == ""


def test_the_files_that_pages_about_the_code_name_are_there():
    """Paths in contributing and in decisions, from the top or from `outboxkit/`."""
    pages = (prose.ROOT / "docs/contributing.md", *prose.ROOT.glob("docs/decisions/0*.md"))
    named = {(page.name, path) for page in pages for path in re.findall(r"`(\w[\w/]*/\w+\.py)`", page.read_text())}
    missing = [pair for pair in named if not any((prose.ROOT / top / pair[1]).is_file() for top in ("", "outboxkit"))]
    assert sorted(missing) == []


LONG = "One " + "very " * 23 + "long sentence."
BROKEN = {
    "A queue that is deleted is no outage.": "say “is not a”",
    "Where the row is old, it is stale.": "say “if” or “when”",
    "None where there is none.": "say “if” or “when”",
    "Whoever sends it gets the answer.": "a process is “the relay”, not “who”",
    "It goes to who asked for it.": "a process is “the relay”, not “who”",
    "The insert rings a bell.": "a retired word",
    "See the [retry ladder](settings.md#retry).": "a retired word",
    LONG: "26 words in a sentence",
    "* `one` item\n* " + LONG: "26 words in a sentence",
}
FINE = (
    "There is no queue, and it is no longer there.",
    "It is in the table where rows wait, and tells where it was.",
    "Where does it go? Ask the people who wrote it.",
    "A message whose key is parked.",
    "Use `WHERE door IS NULL`, or ring.py.",
    "Short sentences. " * 20,
    "| one cell of " + "many " * 12 + "| another of " + "many " * 12 + "|",
    "```python\n" + LONG + "\n```",
    "<!-- " + LONG + " -->",
)


@pytest.mark.parametrize(("text", "rule"), BROKEN.items(), ids=range(len(BROKEN)))
def test_a_page_that_breaks_a_rule_is_seen(text, rule):
    assert {place[1] for found in prose.page(text) for place in prose.of_text(found)} == {rule}


@pytest.mark.parametrize("text", FINE, ids=range(len(FINE)))
def test_a_page_that_breaks_no_rule_is_left_in_peace(text):
    assert [place for found in prose.page(text) for place in prose.of_text(found)] == []


MODULE = '''\
"""How a module is described."""
# A comment, which is no exception.
LIMIT = 1  # a row goes where it fits
"""How much there may be."""


class Door:
    """Entrance.

    What follows is not the first paragraph.
    """

    kept: int

    def open(self, given: int, key_lane: str) -> str:
        found = [made for made in (given,)]
        return f"give {found} to whoever wants it, please"
'''


def test_what_breaks_a_rule_in_a_module_is_seen_with_its_line():
    texts = {place[:2] for text in prose.module(MODULE) for place in prose.of_text(text)}
    names = {(line, name, rule) for line, name in prose.names(MODULE) if (rule := prose.of_name(name))}
    assert texts == {
        (1, "a docstring says what the thing is"),
        (2, "say “is not a”"),
        (3, "say “if” or “when”"),
        (4, "a docstring says what the thing is"),
        (17, "a process is “the relay”, not “who”"),
    }
    assert names == {
        (7, "Door", "a retired word"),
        (15, "given", "a variable is a noun"),
        (15, "key_lane", "a retired word"),
        (16, "found", "a variable is a noun"),
        (16, "made", "a variable is a noun"),
    }
