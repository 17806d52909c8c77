"""The wheel: what an index shows of it, and what type checkers see of it from a user's project.

Its libraries are those of this environment. `make dist` installs it into bare ones.
"""

import email
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from email.message import Message
from pathlib import Path

import pytest

from tests.distribution import building
from tests.support.pages import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PROGRAM = ROOT / "tests" / "distribution" / "typed_program.py"
WRONG = """
def wrong(session: Session) -> None:
    outbox.add(session, object(), kee="order-1")
    number: int = outbox.add(session, object()).id
    assert number
    book_order(session, "no event")
"""
Check = Callable[[Path], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return building.build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel."""
    return building.beside_these_libraries(wheel, tmp_path_factory.mktemp("user") / "environment")


def program(folder: Path, more: str = "") -> Path:
    """The user's program, in a folder of its own, far from the source of outboxkit."""
    path = folder / "program.py"
    path.write_text(PROGRAM.read_text() + more)
    return path


@pytest.fixture(scope="module")
def mypy(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Check:
    cache = tmp_path_factory.mktemp("cache")

    def check(path: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "--cache-dir", cache, path]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=path.parent)

    return check


@pytest.mark.night
def test_mypy_finds_nothing_wrong_with_a_users_program_and_the_types_that_it_expects(mypy: Check, tmp_path: Path):
    ended = mypy(program(tmp_path))
    assert (ended.stdout, ended.returncode) == ("Success: no issues found in 1 source file\n", 0)
    ended = mypy(program(tmp_path, WRONG))
    assert re.findall(r"\[([a-z-]+)\]$", ended.stdout, re.MULTILINE) == ["call-arg", "assignment", "arg-type"]


@pytest.mark.night
def test_pyright_finds_nothing_wrong_with_it(python: Path, tmp_path: Path):
    """Strict, too. Pyright is installed for it, with its own node."""
    own = building.environment(tmp_path / "pyright")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", own]
    subprocess.run([*pip, "install", "pyright[nodejs]"], check=True, capture_output=True)
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    command = [own.with_name("pyright"), "--pythonpath", python]
    for more, errors in (("", 0), (WRONG, 3)):
        program(folder, more)
        ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
        assert re.search(rf"^{errors} errors?, 0 warnings", ended.stdout, re.MULTILINE), ended.stdout


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_string(archive.read(name).decode())


def test_an_index_shows_the_readme_with_links_that_lead_somewhere(metadata: Message):
    shown, source = metadata.get_payload(), PROJECT["urls"]["Source"]
    readme = (ROOT / "README.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)", shown)
    kinds = (f"{source}/blob/main/", f"{source}/raw/main/")
    ours = [link for link in links if link.startswith(kinds)]
    assert len(ours) > 10
    assert [link for link in links if link not in ours and not link.startswith("https://")] == []
    files = [link.removeprefix(kinds[0]).removeprefix(kinds[1]).partition("#")[0] for link in ours]
    assert [name for name in files if not (ROOT / name).exists()] == []
    assert re.findall(r"!\[[^\]]*\]\(([^)]+)\)", shown) == [link for link in ours if link.startswith(kinds[1])]
    assert shown.replace(f"]({kinds[0]}", "](").replace(f"]({kinds[1]}", "](") == readme


def test_what_an_index_says_of_versions_is_what_is_supported(metadata: Message):
    page = (ROOT / "docs" / "reference" / "support.md").read_text()
    (sqlalchemy,) = [each for each in PROJECT["dependencies"] if each.startswith("sqlalchemy")]
    assert f"| SQLAlchemy | `{sqlalchemy.removeprefix('sqlalchemy')}` |" in page
    minors = re.findall(
        r"^Programming Language :: Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE
    )
    assert f"| Python | `{PROJECT['requires-python']}`: {', '.join(minors[:-1])} and {minors[-1]} |" in page
    assert {"Source", "Documentation", "Changelog", "Issues", "Security"} <= PROJECT["urls"].keys()
    assert all(url.startswith(PROJECT["urls"]["Source"]) for url in PROJECT["urls"].values())


def test_the_sdist_has_what_is_needed_to_build_and_to_test(tmp_path: Path):
    shutil.unpack_archive(building.build("sdist", tmp_path / "dist"), tmp_path / "unpacked", filter="data")
    (folder,) = (tmp_path / "unpacked").iterdir()
    there = {path.name for path in folder.iterdir()}
    top = {"README.md", "LICENSE", "CHANGELOG.md", "Makefile", "pyproject.toml", "docs", "tests", "outboxkit"}
    assert top <= there
