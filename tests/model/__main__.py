"""`python -m tests.model`: check all models and their broken variants, and print what was searched and found."""

import argparse
import sys

from tests.model.spin import Model, check, models, provide, table
from tests.servers.server import ServersUnavailable


def main() -> int:
    """Print the table, or the shortest trace of one broken variant."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--night", action="store_true", help="larger models: some minutes instead of one")
    parser.add_argument("--trace", nargs=2, metavar=("MODEL", "VARIANT"), help="the shortest trace of a broken variant")
    arguments = parser.parse_args()
    try:
        provide()
    except ServersUnavailable as unavailable:
        print(unavailable, file=sys.stderr)
        return 1
    if arguments.trace:
        return _show(*arguments.trace)
    return max([_check(model, night=arguments.night) for model in models()])


def _show(name: str, broken: str) -> int:
    known = {(model.name, variant.name): (model, variant) for model in models() for variant in model.variants}
    if (name, broken) not in known:
        print(
            f"{name} {broken} is not known; accepted are:",
            *(" ".join(pair) for pair in known),
            sep="\n  ",
            file=sys.stderr,
        )
        return 2
    model, variant = known[name, broken]
    checked = check(model, model.broken, variant, shortest=True)
    print(f"broken: {variant.text}", *checked.trace, f"refuted: {checked.refuted}", sep="\n")
    return 0


def _check(model: Model, *, night: bool) -> int:
    print(f"\n{model.title}\n")
    print(table([(f"  {each.name}", f"promise {each.promise}", each.text) for each in model.properties]), end="\n\n")
    rows, failed = [("  searched", "states", "depth", "seconds", "result")], 0
    for sizes in model.by_night if night else model.by_day:
        found = check(model, sizes)
        failed |= found.refuted is not None
        rows.append(
            (f"  {sizes}", f"{found.states:,}", str(found.depth), f"{found.seconds:.1f}", found.refuted or "all hold")
        )
    for variant in model.variants:
        found = check(model, model.broken, variant)
        failed |= found.refuted != variant.breaks
        verdict = (
            f"{variant.breaks} refuted, as it should be"
            if found.refuted == variant.breaks
            else f"NOT REFUTED: {found.refuted}"
        )
        rows.append(
            (f"  broken by {variant.name}", f"{found.states:,}", str(found.depth), f"{found.seconds:.1f}", verdict)
        )
    print(table(rows), flush=True)
    return int(failed)


sys.exit(main())
