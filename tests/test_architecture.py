"""The rules of the code base that no other tool checks; `make check` runs them.

Import directions are import-linter's (pyproject.toml), details of the reference pages `tests/unit/test_reference.py`'s.
"""

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCAL_PATH = re.compile(r"(?<![\w.~$}/:-])/(?:work|root|home|Users)\b(?!\.)")


def files() -> list[Path]:
    """Every file that belongs to the project: what git tracks or would, or else everything but what tools leave."""
    listing = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        found = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split("\0")
        paths = [ROOT / name for name in found if name]
    except (OSError, subprocess.CalledProcessError):
        paths = [path for path in ROOT.rglob("*") if not any(part.startswith(".") for part in path.parts)]
    return sorted(path for path in paths if path.is_file() and "__pycache__" not in path.parts)


FILES = files()
PYTHON = [path for path in FILES if path.suffix == ".py"]
MODULES = [path for path in PYTHON if path.is_relative_to(ROOT / "outboxkit")]


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_every_module_is_on_a_layer():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = {name.strip() for layer in contracts[0]["layers"] for name in layer.split("|")}
    rooms = {"outboxkit", "outboxkit.runtime", "outboxkit.operators"}
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in MODULES}
    on_none = [name for name in names - rooms if not any(f"{name}.".startswith(f"{layer}.") for layer in layers)]
    assert sorted(on_none) == []


def test_every_package_has_tests():
    """In the folder of its name below tests/unit, or in a file of its name."""
    unit = ROOT / "tests" / "unit"
    tests = [path.relative_to(unit) for path in PYTHON if path.is_relative_to(unit) and path.name.startswith("test_")]
    tested = {parent for path in tests for parent in path.parents}
    tested |= {path.with_name(path.stem.removeprefix("test_")) for path in tests}
    tested.add(Path("operators", "sql"))  # in test_statements.py, with the statements of the core
    packages = {path.parent.relative_to(ROOT / "outboxkit") for path in MODULES}
    assert sorted(map(str, packages - tested)) == []


def test_no_file_names_a_path_of_one_machine():
    offenders = []
    for path in FILES:
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            continue
        offenders += [
            f"{shown(path)}:{number}: {line}" for number, line in enumerate(lines, 1) if LOCAL_PATH.search(line)
        ]
    assert offenders == []


TWINS = {
    **dict.fromkeys(("upgrade", "downgrade"), "a migration, and the function that runs all of them"),
    **dict.fromkeys(("Idempotent", "add_problem_handlers"), "FastAPI's and Flask's: a program has one of them"),
    "main": "the entry point of the commands, and that of programs of one's own",
    **dict.fromkeys(("configure_log", "leave", "run"), "`runtime/process.py` has it for programs of one's own"),
    "T": "a type variable",
    **dict.fromkeys(("console", "migrate", "relay", "replay", "run"), "a command has the name of what it does"),
    **dict.fromkeys(("audit", "operation", "pause"), "a table has the name of one of its rows"),
}
"""Public names that two modules may have, each with the reason."""
AROUND_THE_CORE = ("cli", "console", "operators", "testing")
"""Folders in which a constant is its module's own affair, and in `cli` the type of an option, too."""


def public_definitions(path: Path) -> Iterator[str]:
    """The module's own public names: classes, functions and aliases of types, in the core constants, too."""
    folder = path.relative_to(ROOT / "outboxkit").parts[0]
    for node in ast.parse(path.read_text()).body:
        names = [node.name] if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) else []
        if folder != "cli" and isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
            names = [name for name in names if folder not in AROUND_THE_CORE or not name.isupper()]
        yield from (name for name in names if name[0] != "_")


def test_a_public_name_exists_once():
    homes: dict[str, set[str]] = {}
    for path in MODULES:
        for name in public_definitions(path):
            homes.setdefault(name, set()).add(shown(path))
    several = {name: sorted(paths) for name, paths in homes.items() if len(paths) > 1}
    assert {name: paths for name, paths in several.items() if name not in TWINS} == {}
    assert TWINS.keys() - several.keys() == set()


DRIVERS: dict[str, str | tuple[str, ...]] = {
    **dict.fromkeys(("aio_pika", "aiormq", "pamqp", "yarl"), ("brokers/rabbitmq", "operators/doctor/broker/snapshot")),
    "fastapi": "http/fastapi",
    "starlette": ("http/fastapi", "console"),
    **dict.fromkeys(("itsdangerous", "jinja2", "markupsafe", "uvicorn"), "console"),
    **dict.fromkeys(("flask", "werkzeug"), "http/flask"),
    **dict.fromkeys(("pydantic", "pydantic_settings"), ("cli", "runtime/settings")),
    **dict.fromkeys(("rich", "typer"), "cli"),
    "alembic": ("schema/migrations", "schema/autogenerate"),
    "httpx": "brokers/http",
    **dict.fromkeys(("opentelemetry", "prometheus_client"), "telemetry"),
    "psycopg": ("database", "relay", "runtime/urls"),
    "tenacity": ("runtime/outage", "runtime/process"),
}


def test_drivers_are_imported_where_they_belong():
    """Also in modules that the contracts of import-linter, which list modules, do not know yet."""
    offenders = []
    for path in MODULES:
        home = path.relative_to(ROOT / "outboxkit").as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                place = DRIVERS.get(name.partition(".")[0])
                if place is not None and not home.startswith(place):
                    offenders.append(f"{shown(path)} imports {name}, which belongs in {place}")
    assert offenders == []


DIALECTS = re.compile("sqlite|postgresql", re.IGNORECASE)
KNOW_DIALECTS = (
    *("statements/dialects.py", "tables/", "schema/migrations/"),
    "schema/autogenerate.py",  # Alembic's comparison of the tables
    "database/engines.py",  # what the engines of a database have in common
    "runtime/process.py",  # the engine factory
    *("testing/plugin.py", "testing/database.py"),  # the names of fixtures, and the copy of a file
    "runtime/urls.py",  # which URLs the engine factory accepts
)


def dialect_names(path: Path) -> Iterator[str]:
    """Names of a dialect in the code: a string that is one, or an identifier with one in it. Prose may have them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and DIALECTS.fullmatch(node.value):
            yield f"{shown(path)}:{node.lineno} {node.value!r}"
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sqlalchemy.dialects"):
            yield f"{shown(path)}:{node.lineno} {node.module}"
        for name in (getattr(node, field, None) for field in ("id", "attr", "arg", "name")):
            if isinstance(name, str) and DIALECTS.search(name):
                yield f"{shown(path)}:{getattr(node, 'lineno', 0)} {name}"


def test_one_module_tells_postgresql_from_sqlite():
    """Elsewhere a branch asks what the database can do, or the statement is the same for both."""
    home = ROOT / "outboxkit"
    others = [path for path in MODULES if not path.relative_to(home).as_posix().startswith(KNOW_DIALECTS)]
    assert [found for path in others for found in dialect_names(path)] == []


SQLSTATE = re.compile(r"[0-9][0-9A-Z]{4}")


def test_sqlstates_stand_in_one_table():
    offenders = [
        f"{shown(path)}:{node.lineno} {node.value!r}"
        for path in MODULES
        if path.name != "sqlstates.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and SQLSTATE.fullmatch(node.value)
    ]
    assert offenders == []
