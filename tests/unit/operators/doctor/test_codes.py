"""The reference has each code that a check may give, and no other one."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[4]
CODE = re.compile(r"[a-z]+(-[a-z]+)*")
MAKERS = {"problem", "warning", "note", "make"}


def strings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def codes(path: Path) -> Iterator[str]:
    """The codes of findings that are made in a call."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MAKERS:
            yield from (each.value for each in ast.walk(node.args[0]) if isinstance(each, ast.Constant))


def test_the_reference_has_every_code() -> None:
    modules = sorted((ROOT / "outboxkit" / "operators" / "doctor").rglob("*.py"))
    documented = re.findall(r"^\| `([\w-]+)` ", (ROOT / "docs/reference/findings.md").read_text(), re.MULTILINE)
    assert len(set(documented)) == len(documented)
    assert {code for path in modules for code in codes(path)} <= set(documented)
    assert set(documented) <= {text for path in modules for text in strings(path)}
    assert all(CODE.fullmatch(code) for code in documented)
