"""`python -m tests.faults.matrix_page`: write `docs/explanation/kill-matrix.md` from the table of the tests."""

from pathlib import Path

from tests.faults.matrix import CELLS, EXCLUDED, STEPS, Cell, Fault

PAGE = """# The kill matrix

A crash does harm between two steps: when the broker has a message and the database does not know it, or when a row is
committed and nobody has acked. So each step that a process takes between two servers is stopped in five ways:

* **killed**: SIGKILL when the process has sent the step, before the server gets it;
* **cut before**: the connection ends, and the server has not got it;
* **cut after**: the server has got it and acted, and the connection ends before its answer comes;
* **restarted**: the server is killed before it gets the step, and started again;
* **silent**: the network acknowledges the step and all that follows, and nothing arrives.

[A proxy](../../tests/faults/tripwire.py) in front of each real server reads its protocol and stops at the statement
or frame; the shipped code knows nothing of it. Then the fault is mended: who was killed is started again, a command is
run again until it ends well. All must be done then, once: each effect and row is there once, no attempt was counted
that the message did not cause, no message is dead without a cause, a key is in order, the queue is empty, and the
process ends cleanly.

Each step of a row below, stopped in one of these ways, is [a test](../../tests/faults/test_matrix.py): {cells} in all.
`make matrix` runs them all, `make test` one of each row, `make test-all` a fifth besides, drawn by its seed.

| what goes on | steps |
|---|---|
{rows}

## What is left out

{excluded}

`python -m tests.faults.matrix_page` writes this page.
"""
TITLES = {
    Fault.KILLED: "killed",
    Fault.CUT_BEFORE: "cut before",
    Fault.CUT_AFTER: "cut after",
    Fault.RESTARTED: "restarted",
    Fault.SILENT: "silent",
}


def page() -> str:
    """The page, whole."""
    lines = list[str]()
    for cell, steps in STEPS.items():
        lines.append(f"| **{cell.__name__}**: {_first_line(cell)} | {', '.join(what for what, _ in steps)} |")
    excluded = [f"* {cell.__name__}, {TITLES[fault]}: {why}." for (cell, _, fault), why in EXCLUDED.items()]
    return PAGE.format(cells=len(CELLS), rows="\n".join(lines), excluded="\n".join(excluded))


def _first_line(cell: type[Cell]) -> str:
    return (cell.__doc__ or "").splitlines()[0].rstrip(".")


if __name__ == "__main__":
    Path("docs/explanation/kill-matrix.md").write_text(page())
