"""The table at the end of a run. Pure."""

from collections.abc import Sequence

from tests.benchmarks.rounds import Line, Outcome, rounded

HEADINGS = ("case", "what", "value", "beside", "ratio", "target", "")


def table(outcomes: Sequence[Outcome]) -> str:
    """All lines of all cases, with their medians, ratios and targets."""
    rows: list[Sequence[str]] = [HEADINGS]
    for outcome in outcomes:
        medians = outcome.medians()
        rows += [_row(outcome, line, medians) for line in outcome.lines]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    drawn = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    drawn.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([*drawn, "", *(_remark(outcome) for outcome in outcomes)])


def target(line: Line) -> str:
    """What is wanted of a line, in words."""
    least = None if line.at_least is None else f">= {line.at_least:g}"
    most = None if line.at_most is None else f"<= {line.at_most:g}"
    return ", ".join(part for part in (least, most) if part) or "-"


def _row(outcome: Outcome, line: Line, medians: dict[str, dict[str, float]]) -> Sequence[str]:
    value = line.value(outcome.quiet)
    met = {True: "met", False: "NOT MET", None: ""}[line.is_met(value)]
    if value is None:
        return (outcome.case, line.what, "no quiet round", "", "", target(line), "")
    own = _number(medians[line.of[0]][line.of[1]], line.unit)
    if line.to is None:
        return (outcome.case, line.what, own, "", "", target(line), met)
    beside = _number(medians[line.to[0]][line.to[1]], line.unit)
    return (outcome.case, line.what, own, beside, f"{value:.2f}", target(line), met)


def _number(value: float, unit: str) -> str:
    return f"{rounded(value):g} {unit}".strip() if abs(value) < 1000 else f"{round(value)} {unit}".strip()


def _remark(outcome: Outcome) -> str:
    quiet = len(outcome.quiet)
    plural = "" if quiet == 1 else "s"
    return f"{outcome.case}: median of {quiet} round{plural}; {outcome.dropped} dropped for CPU steal"
