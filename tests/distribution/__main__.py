"""`make dist`: build the sdist and the wheel into dist/, and use them as somebody who installs them does.

Their libraries come from the package index, in the newest versions that are allowed.
"""

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from tests.distribution.building import ROOT, build, environment, site_packages

DIST = ROOT / "dist"
APPLICATION = Path(__file__).with_name("application.py")
HANDLED = "processed duplicate [7] 1 sent\n"
EXTRAS = ("", "[flask]", "[fastapi]", "[zstd]", "[otel]", "[metrics]", "[worker]", "[console]", "[all]")


def run(*command: str | Path, code: int = 0, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a command that must end with this code, in an environment without variables of ours."""
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    if ended.returncode != code:
        sys.exit(f"{' '.join(map(str, command))}: exit code {ended.returncode}\n{ended.stdout}{ended.stderr}")
    return ended


def check(is_right: object, text: str) -> None:
    """Print what was checked, or end with it."""
    if not is_right:
        sys.exit(f"not so: {text}")
    print(f"  {text}")


def check_metadata(paths: Sequence[Path]) -> None:
    """Their fields and the README, as an index reads them."""
    run(sys.executable, "-m", "twine", "check", "--strict", *paths)
    print("  twine check --strict: the metadata is right, and the README renders")


def check_sdist(sdist: Path, wheel: Path, folder: Path) -> None:
    """The sdist builds the same wheel, byte for byte."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    again = build("wheel", folder / "again", source)
    check(again.read_bytes() == wheel.read_bytes(), "the sdist builds the same wheel, byte for byte")


def check_wheel(wheel: Path) -> None:
    """It has what runs, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    check("outboxkit/py.typed" in names, "the wheel has its annotations marked (py.typed)")
    shown = {name.rpartition("/")[2] for name in names if name.startswith("outboxkit/console/")}
    shipped = {"layout.html", "console.css", "console.js", "htmx.min.js", "htmx.LICENSE.txt"}
    check(shipped <= shown, "the wheel has the console's templates, its style, and htmx with its licence")
    roots = {name.partition("/")[0].partition("-")[0] for name in names}
    check(roots == {"outboxkit"}, "the wheel has no file outside of outboxkit")


def list_materials(wheel: Path) -> None:
    """Write a CycloneDX document of what workers/requirements.lock installs beside the wheel: versions and hashes."""
    path = DIST / f"{'-'.join(wheel.name.split('-')[:2])}.cdx.json"
    lock = ROOT / "workers" / "requirements.lock"
    tool = (sys.executable, "-W", "ignore", "-m", "cyclonedx_py", "requirements", lock, "--output-reproducible")
    run(*tool, "--pyproject", ROOT / "pyproject.toml", "--mc-type", "library", "--of", "JSON", "-o", path)
    named = {(each["name"], each["version"]) for each in json.loads(path.read_text())["components"]}
    locked = {
        (line.split("==")[0], line.split()[0].split("==")[1])
        for line in lock.read_text().splitlines()
        if re.match(r"\w", line)
    }
    check(named == locked, f"{path.relative_to(ROOT)} lists each of the {len(locked)} libraries of a worker")


def install(wheel: Path, extra: str, folder: Path) -> Path:
    """Install the wheel with an extra into a bare environment; returns its interpreter."""
    python = environment(folder)
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", python)
    run(*pip, "install", f"outboxkit{extra} @ {wheel.resolve().as_uri()}")
    run(*pip, "check")
    return python


def disk(*folders: Path) -> int:
    """The kilobytes that these folders occupy."""
    return sum(int(line.split()[0]) for line in run("du", "-sk", *folders).stdout.splitlines())


def check_environment(extra: str, python: Path, cwd: Path) -> None:
    """Use what is installed: the application in each, the commands if they are there."""
    libraries = site_packages(python)
    whole, compiled = disk(libraries), disk(*libraries.rglob("__pycache__"))
    sizes = f"{(whole - compiled) / 1000:.1f} MB, and {whole / 1000:.1f} MB with its modules compiled"
    print(f"outboxkit{extra}: {len(list(libraries.glob('*.dist-info')))} packages, {sizes}")
    told = run(python, "-I", APPLICATION, cwd=cwd).stdout
    check(told == HANDLED, "an application adds a message and handles it once")
    command = python.with_name("outboxkit")
    if extra in ("[worker]", "[console]", "[all]"):
        check("outboxkit 0." in run(command, "--version", cwd=cwd).stdout, "outboxkit --version")
        demo = run(command, "demo", "--orders", "200", cwd=cwd).stdout
        check("Every committed order has exactly one effect." in demo, "outboxkit demo")
    else:
        told = run(command, "relay", code=2, cwd=cwd).stderr
        cure = "outboxkit: typer is not installed: pip install 'outboxkit[worker]'\n"
        check(told == cure, "outboxkit relay says what to install, in one line")


def main() -> None:
    """Build and check; the first thing that is not right ends it."""
    shutil.rmtree(DIST, ignore_errors=True)
    sdist, wheel = build("sdist", DIST), build("wheel", DIST)
    print(f"{sdist.relative_to(ROOT)}, {wheel.relative_to(ROOT)}")
    check_metadata([sdist, wheel])
    check_wheel(wheel)
    list_materials(wheel)
    with tempfile.TemporaryDirectory(prefix="outboxkit-dist-") as name:
        folder = Path(name)
        check_sdist(sdist, wheel, folder / "sdist")
        for number, extra in enumerate(EXTRAS):
            python = install(wheel, extra, folder / f"environment-{number}")
            check_environment(extra, python, folder)
            shutil.rmtree(folder / f"environment-{number}")


main()
