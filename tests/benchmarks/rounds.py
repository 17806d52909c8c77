"""Rounds: every variant of a case once, in an order of its own, so that what is compared ran side by side.

A round during which the host took the machine away is dropped, and counted.
"""

import random
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Figures = Mapping[str, float]
Measure = Callable[[], Figures]

STAT = Path("/proc/stat")
STEAL_LIMIT = 0.05
"""A round in which the host took more than this share of the time says nothing."""


@dataclass(frozen=True)
class Round:
    """What each variant gave, and the greatest share of the time that the host took meanwhile."""

    figures: Mapping[str, Figures]
    steal: float


@dataclass(frozen=True)
class Line:
    """One line of the table: a figure of a variant, or its ratio to another one's, and what is wanted of it.

    Attributes:
        what: in words.
        of: variant and figure.
        to: variant and figure that it is divided by, round by round.
        at_least, at_most: the target.
        unit: of a figure that is not divided.
    """

    what: str
    of: tuple[str, str]
    to: tuple[str, str] | None = None
    at_least: float | None = None
    at_most: float | None = None
    unit: str = ""

    def value(self, rounds: Iterable[Round]) -> float | None:
        """The median over the rounds; None where there was none."""
        found = [self._in(one) for one in rounds]
        return statistics.median(found) if found else None

    def is_met(self, value: float | None) -> bool | None:
        """Whether the target is met; None where there is no target, or no value."""
        if value is None or (self.at_least is None and self.at_most is None):
            return None
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)

    def _in(self, one: Round) -> float:
        value = one.figures[self.of[0]][self.of[1]]
        if self.to is None:
            return value
        beside = one.figures[self.to[0]][self.to[1]]
        return value / beside if beside else 0.0


@dataclass
class Outcome:
    """The rounds of one case."""

    case: str
    lines: Sequence[Line]
    rounds: list[Round] = field(default_factory=list)

    @property
    def quiet(self) -> list[Round]:
        """The rounds that count."""
        return [one for one in self.rounds if one.steal <= STEAL_LIMIT]

    @property
    def dropped(self) -> int:
        """How many do not."""
        return len(self.rounds) - len(self.quiet)

    def medians(self) -> dict[str, dict[str, float]]:
        """For each variant the median of each of its figures."""
        found = self.quiet
        if not found:
            return {}
        return {
            variant: {name: rounded(statistics.median(one.figures[variant][name] for one in found)) for name in figures}
            for variant, figures in found[0].figures.items()
        }

    def record(self) -> dict[str, object]:
        """What is printed as JSON."""
        values = {line.what: line.value(self.quiet) for line in self.lines}
        return {
            "case": self.case,
            "rounds": len(self.quiet),
            "dropped": self.dropped,
            "medians": self.medians(),
            "results": {
                line.what: {
                    "value": None if (value := values[line.what]) is None else rounded(value),
                    "at_least": line.at_least,
                    "at_most": line.at_most,
                    "met": line.is_met(value),
                }
                for line in self.lines
            },
        }


def rounded(value: float) -> float:
    """With as many digits as a measurement has."""
    return round(value) if abs(value) >= 1000 else float(f"{value:.3g}")


def ticks() -> list[int]:
    """Clock ticks of all cores: user nice system idle iowait irq softirq steal; zeros if the machine does not tell."""
    return list(map(int, STAT.read_text().split("\n", 1)[0].split()[1:9])) if STAT.exists() else [0] * 8


def watch(measure: Measure) -> tuple[Figures, float]:
    """A measurement, and the share of the machine's time that its host took meanwhile."""
    before = ticks()
    figures = measure()
    passed = [now - then for now, then in zip(ticks(), before, strict=True)]
    return figures, passed[-1] / (sum(passed) or 1)


def run(case: str, variants: Mapping[str, Measure], lines: Sequence[Line], *, wanted: int) -> Outcome:
    """Measure until there are as many quiet rounds as wanted, or twice as many in all."""
    outcome = Outcome(case, lines)
    while len(outcome.quiet) < wanted and len(outcome.rounds) < 2 * wanted:
        figures: dict[str, Figures] = {}
        steals: list[float] = []
        for name in random.sample(list(variants), len(variants)):
            figures[name], steal = watch(variants[name])
            steals.append(steal)
            told = f"{case} round {len(outcome.rounds) + 1} {name}: {dict(figures[name])} steal {steal:.3f}"
            print(told, file=sys.stderr, flush=True)
        outcome.rounds.append(Round({name: figures[name] for name in variants}, max(steals)))
    return outcome
