"""The core without the libraries of any extra: what works, and what is said of the rest.

Each program runs in a process whose import system refuses every module outside the core set. That proves what outboxkit
imports, and not what pip would install: `make dist` installs the wheel into bare environments.
"""

import os
import runpy
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from outboxkit.errors.extras import EXTRAS, how_to_install, needs_extra
from tests.support.pages import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CORE = ("msgspec", "outboxkit", "sqlalchemy", "typing_extensions", "uuid_utils")
REFUSING = """
import sys

class Refusing:
    def __init__(self, accepted, refused):
        self.accepted, self.refused = accepted and {*accepted, *sys.stdlib_module_names}, refused

    def find_spec(self, name, path=None, target=None):
        root = name.partition(".")[0]
        is_accepted = not self.accepted or root in self.accepted or root.startswith("_sysconfigdata")  # a machine's own
        if name in self.refused or not is_accepted:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in [name for name in sys.modules if name.partition(".")[0] == "greenlet"]:
    del sys.modules[name]  # which coverage imports
sys.meta_path.insert(0, Refusing(%r, %r))
"""
APPLICATION = """
import runpy
runpy.run_path(sys.argv[1])
"""
COMMAND = """
from outboxkit.__main__ import main
sys.argv = ["outboxkit", *sys.argv[1:]]
main()
"""
WITH_DATABASE = {"OUTBOXKIT_DATABASE_URL": "postgresql+psycopg://app@127.0.0.1:1/shop", "PYTHONPATH": str(ROOT)}
MEASURED = {name: value for name, value in os.environ.items() if name.startswith("COVERAGE_")}
"""The variables by which coverage measures a program that a test starts; empty if it does not."""


def without(
    program: str, *arguments: str, accepted: tuple[str, ...] = CORE, refused: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a program that can import only what is `accepted`, anything if that is empty, and nothing `refused`."""
    if accepted and MEASURED:
        accepted += ("coverage",)
    return subprocess.run(
        [sys.executable, "-c", REFUSING % (accepted, refused) + program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=WITH_DATABASE | MEASURED,
    )


def test_an_application_needs_the_core_alone():
    ended = without(APPLICATION, str(ROOT / "tests" / "distribution" / "application.py"))
    assert (ended.stdout, ended.stderr) == ("processed duplicate [7] 1 sent\n", "")


def core() -> list[Path]:
    """The files of the packages and modules that the contract in pyproject.toml names. Migrations need Alembic."""
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    (modules,) = [each["source_modules"] for each in contracts if each["name"].startswith("The core needs no extra")]
    paths = [ROOT.joinpath(*module.split(".")) for module in modules]
    files = [file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")])]
    return [file for file in files if file.parent.name != "migrations"]


def test_every_module_of_the_core_can_be_imported_without_an_extra():
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in core()]
    assert len(names) > 50
    ended = without(f"import {', '.join(names)}")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_plugin_for_pytest_needs_the_core_alone():
    """Pytest loads it in every environment that has outboxkit."""
    pytests = ("_pytest", "iniconfig", "packaging", "pluggy", "py", "pygments", "pytest")
    ended = without("import outboxkit.testing.plugin", accepted=(*CORE, *pytests))
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_core_takes_sqlalchemys_asyncio_side_from_its_one_home():
    """SQLAlchemy 2.1 refuses to import it without greenlet."""
    told = "import it from outboxkit.database.sqlalchemy_asyncio instead"
    assert [f"{file}: {told}" for file in core() if "from sqlalchemy.ext.asyncio" in file.read_text()] == []


def test_without_sqlalchemys_asyncio_side_nothing_is_asynchronous(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "sqlalchemy.ext.asyncio", None)
    home = runpy.run_path(str(ROOT / "outboxkit" / "database" / "sqlalchemy_asyncio.py"))
    session = Session()
    assert not isinstance(session, (home["AsyncEngine"], home["AsyncSession"]))
    assert not isinstance(session, home["async_scoped_session"][int])
    assert not isinstance(session, home["async_sessionmaker"][int])
    assert home["async_session"](session) is None
    with pytest.raises(ModuleNotFoundError, match="import of sqlalchemy") as refused:
        home["create_async_engine"]("sqlite+aiosqlite://")
    assert how_to_install(refused.value) == "greenlet is not installed: pip install 'outboxkit[worker]'"


@pytest.mark.parametrize(
    ("library", "extra", "options"),
    [
        ("aio_pika", "worker", "--broker-url amqp://localhost/"),
        ("psycopg", "worker", ""),
        ("httpx", "http", "--broker-url https://pay.example/ --destination payments"),
    ],
)
def test_one_library_that_is_missing_is_named(library: str, extra: str, options: str):
    ended = without(COMMAND, "relay", "--drain", *options.split(), accepted=(), refused=(library,))
    told = f"outboxkit: {library} is not installed: pip install 'outboxkit[{extra}]'\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", told)


@pytest.mark.parametrize(
    ("module", "name", "extra"),
    [
        ("outboxkit.http.fastapi", "Idempotent", "fastapi"),
        ("outboxkit.http.flask", "Idempotent", "flask"),
        ("outboxkit.testing", "assert_effects_once", "worker"),
        ("outboxkit.testing", "assert_order_does_not_matter", "worker"),
    ],
)
def test_an_import_of_an_application_names_its_extra(module: str, name: str, extra: str):
    ended = without(f"from {module} import {name}")
    told = ended.stderr.splitlines()[-1]
    assert told.startswith(f"ModuleNotFoundError: {module}")
    assert told.endswith(f"is not installed: pip install 'outboxkit[{extra}]'")


def test_a_psycopg_without_libpq_is_told_what_it_lacks():
    refused = ("psycopg_binary", "psycopg_c", "psycopg.pq.pq_ctypes")
    ended = without(COMMAND, "status", accepted=(), refused=refused)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("outboxkit: psycopg found no libpq: pip install 'psycopg[binary]'")
    assert ended.stderr.count("\n") == 1


def test_another_missing_module_is_not_blamed_on_an_extra():
    assert how_to_install(ModuleNotFoundError("No module named 'shop'", name="shop")) is None
    assert how_to_install(ImportError("cannot import name 'x' from 'typer'", name="typer")) is None


def test_what_needs_an_extra_says_so_and_hides_no_other_error():
    needs = r"^the door needs an extra: flask is not installed"
    with pytest.raises(ModuleNotFoundError, match=needs) as told, needs_extra("the door"):
        raise ModuleNotFoundError("No module named 'flask'", name="flask")
    assert told.value.name == "flask"
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'shop'$"), needs_extra("the door"):
        raise ModuleNotFoundError("No module named 'shop'", name="shop")


def test_the_extras_are_those_of_the_project():
    modules: dict[str, set[str]] = {}
    for module, distributions in packages_distributions().items():
        for name in distributions:
            modules.setdefault(name.lower().replace("_", "-"), set()).add(module)
    for extra, requirements in PROJECT["project"]["optional-dependencies"].items():
        if extra in ("all", "zstd"):  # compression.py says itself what zstd needs, and from 3.14 on that is nothing
            continue
        wanted = {requirement.partition(">=")[0] for requirement in requirements} - {
            "sqlalchemy[asyncio]",
            "outboxkit[worker]",
        }
        named = {library for library, of in EXTRAS.items() if of == extra}
        for distribution in wanted:
            parts = {distribution.replace("-", ".")}  # of a library that is several distributions
            assert (modules[distribution] | parts) & named, f"{distribution} is not in outboxkit/errors/extras.py"
