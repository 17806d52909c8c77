"""The features that can meet on the way of a message, and the scenarios in which each pair of them does."""

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import combinations, product

FEATURES: Mapping[str, Sequence[str]] = {
    "body": ("plain", "compressed", "renamed", "foreign"),
    "added by": ("a session", "a repeated request", "a handler", "an answer", "a stranger"),
    "due": ("at once", "later"),
    "expires": ("never", "in an hour"),
    "handler": ("async", "thread", "batch", "ordered", "shards"),
    "calls": ("nobody", "an API once"),
    "first attempt": ("succeeds", "fails", "rejected"),
    "copies": ("one", "two", "replayed"),
    "queue": ("running", "paused"),
}
"""Each kind of feature and the ways in which it occurs: one of each kind makes a scenario."""

Feature = tuple[str, str]
Scenario = Mapping[str, str]

STRANGER = "a stranger"
IMPOSSIBLE: Mapping[frozenset[Feature], str] = {
    **{
        frozenset({("body", "foreign"), ("added by", way)}): "A foreign message has not been in an outbox"
        for way in FEATURES["added by"]
        if way != STRANGER
    },
    **{
        frozenset({("body", body), ("added by", STRANGER)}): "Only a foreign message is added by a stranger"
        for body in ("compressed", "renamed", "plain")
    },
    frozenset({("body", "compressed"), ("added by", "an answer")}): "An answer is stored as it came",
    **{
        frozenset({(kind, "foreign" if kind == "body" else STRANGER), other}): why
        for kind in ("body", "added by")
        for other, why in (
            (("due", "later"), "Only the outbox delays a message"),
            (("expires", "in an hour"), "Only an outbox row has an end of its time"),
            (("copies", "replayed"), "Only messages that a relay published are kept"),
        )
    },
}
"""Pairs that cannot meet, and why."""


PAGE = """# Where two features meet

Each feature has tests of its own. They miss defects where two features meet, such as a compressed payload and a
retry. So each pair of the features below meets in [a scenario](../../tests/pairs/test_pairs.py) on PostgreSQL and
RabbitMQ, with relay and consumer as the commands run them.
Four messages of two keys are added, published and handled. Then each has had one effect, outbox and dead letters are
empty, and an ordered handler has kept the order of each key. By night random scenarios run, too.

## A scenario for each pair

The numbers are those of [the scenarios](#the-scenarios) below. A stranger adds each foreign message, and no other: the
row *foreign* stands for both.

{table}

## The scenarios

A feature that is not named is the first of its kind: a plain body, added by a session, due at once, that never
expires, an `async def` handler, which calls nobody and whose first attempt succeeds, one copy, a running queue.
*Two* are two copies, *replayed* is one that was kept. *An answer* is that of an HTTP destination.

{listed}

## Pairs that cannot meet

{impossible}

`python -m tests.pairs` writes this page.
"""


@cache
def scenarios() -> Sequence[Scenario]:
    """A few scenarios in which every pair that can meet does; always the same ones."""
    every = [(scenario, pairs_of(scenario)) for scenario in possible()]
    missing = set().union(*(pairs for _, pairs in every))
    chosen = list[Scenario]()
    while missing:
        best, pairs = max(every, key=lambda each: len(each[1] & missing))
        chosen.append(best)
        missing -= pairs
    return chosen


def pairs_of(scenario: Scenario) -> set[frozenset[Feature]]:
    """The pairs of features that meet in it."""
    return set(map(frozenset, combinations(scenario.items(), 2)))


def name_of(scenario: Scenario) -> str:
    """Its name as a test: what is not the first way of its kind."""
    special = [way for kind, way in scenario.items() if way != FEATURES[kind][0]]
    return ", ".join(special) or "nothing special"


def possible() -> list[Scenario]:
    """All combinations that can be."""
    every = [dict(zip(FEATURES, ways, strict=True)) for ways in product(*FEATURES.values())]
    return [scenario for scenario in every if not pairs_of(scenario) & IMPOSSIBLE.keys()]


def page() -> str:
    """`docs/explanation/pairs.md`: which scenarios have which pairs, and why the others cannot be."""
    numbered = list(enumerate(scenarios(), 1))
    kinds = list(FEATURES)
    rows = [["", *kinds[1:]], ["---"] * len(kinds)]
    for place, kind in enumerate(kinds[:-1]):
        for way in FEATURES[kind]:
            if way == STRANGER:  # its row would be that of the body `foreign` again
                continue
            cells = [_cell((kind, way), other, numbered) for other in kinds[place + 1 :]]
            rows.append([f"**{way}**", *[""] * place, *cells])
    alike: dict[str, list[str]] = {}
    for pair, why in IMPOSSIBLE.items():
        if ("added by", STRANGER) not in pair:
            alike.setdefault(why, []).append(f"*{' and '.join(sorted(way for _, way in pair))}*")
    listed = "\n".join(f"{number}. {name_of(scenario)}" for number, scenario in numbered)
    impossible = "\n".join(f"* {why}: {', '.join(pairs)}" for why, pairs in alike.items())
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return PAGE.format(table=table, listed=listed, impossible=impossible)


def _cell(feature: Feature, kind: str, numbered: Sequence[tuple[int, Scenario]]) -> str:
    """For each way of this kind the number of the first scenario in which it meets the feature."""
    pairs = {way: frozenset({feature, (kind, way)}) for way in FEATURES[kind]}
    met = {way: [number for number, each in numbered if pair in pairs_of(each)] for way, pair in pairs.items()}
    return "<br>".join(f"{way}: {numbers[0]}" for way, numbers in met.items() if numbers)
