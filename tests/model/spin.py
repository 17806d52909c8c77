"""Reads the models beside this file, and has `spin` check them: as they are, or with one thing broken."""

import fcntl
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.servers import apt
from tests.servers.server import ServersUnavailable

FOLDER = Path(__file__).parent
PROGRAMS = {"spin": ("spin",), "gcc": ("gcc", "libc6-dev")}
"""The programs of the checks, each with its Debian packages."""
DEPTH, MEGABYTES = 1_000_000, 6000


@dataclass(frozen=True)
class Property:
    """A property that a model asserts, and the number of the promise that it stands for."""

    name: str
    number: int
    promise: int
    text: str


@dataclass(frozen=True)
class Variant:
    """A way to break the model, and the property that `spin` must then refute."""

    name: str
    breaks: str
    text: str


@dataclass(frozen=True)
class Model:
    """A Promela file, as its own comments describe it."""

    name: str
    title: str
    properties: tuple[Property, ...]
    variants: tuple[Variant, ...]
    by_day: tuple[str, ...]
    by_night: tuple[str, ...]
    broken: str

    @property
    def path(self) -> Path:
        """The file."""
        return FOLDER / f"{self.name}.pml"


@dataclass(frozen=True)
class Checked:
    """The result of a search: `refuted` is the property that failed, and `trace` what happened until then."""

    states: int
    depth: int
    seconds: float
    refuted: str | None = None
    trace: tuple[str, ...] = ()


def models() -> list[Model]:
    """All models, by name."""
    return [read(path) for path in sorted(FOLDER.glob("*.pml"))]


def read(path: Path) -> Model:
    """A model with what its comments say about its properties, its broken variants and the sizes of its runs."""
    text = path.read_text()
    found = re.findall(r"^#define (\w+) (\d+) +/\* promise (\d+): (.+?) \*/$", text, re.MULTILINE)
    variants = re.findall(r"^#(?:ifn?def|elif defined)\W+(\w+)\W+/\* breaks (\w+): (.+?) \*/$", text, re.MULTILINE)
    runs = {
        kind: tuple(re.findall(rf"^   run {kind}: (.+)$", text, re.MULTILINE))
        for kind in ("by day", "by night", "broken")
    }
    return Model(
        path.stem,
        text.removeprefix("/* ").splitlines()[0],
        tuple(Property(name, int(number), int(promise), says) for name, number, promise, says in found),
        tuple(Variant(*each) for each in variants),
        runs["by day"],
        runs["by night"],
        (*runs["broken"], *runs["by day"])[0],
    )


def provide() -> None:
    """Install the programs that are missing. ServersUnavailable if that is not possible."""
    with (Path(tempfile.gettempdir()) / "outboxkit-spin.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes of tests may come at once
        missing = [program for program in PROGRAMS if shutil.which(program) is None]
        for package in (each for program in missing for each in PROGRAMS[program] if apt.may_install()):
            apt.install(package)
    if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
        raise ServersUnavailable(
            f"The models need {' and '.join(missing)} (Debian, Ubuntu: sudo apt-get install spin gcc libc6-dev)"
        )


def check(model: Model, sizes: str, variant: Variant | None = None, *, shortest: bool = False) -> Checked:
    """Search all states of the model; of a broken variant until the property that it breaks fails.

    Args:
        model: the model.
        sizes: its definitions, such as `-DROWS=3`.
        variant: what is broken; only the property that it breaks is asked for.
        shortest: search by the length of traces, which takes more time and finds a short one.
    """
    flags = sizes.split()
    if variant is not None:
        number = next(each.number for each in model.properties if each.name == variant.breaks)
        flags += [f"-D{variant.name}", f"-DONLY={number}"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in (model.path, FOLDER / "property.h"):
            shutil.copy2(path, folder)  # spin warns of a model that is no older than its trace
        _run(folder, "spin", "-a", *flags, model.path.name)
        how = ["-DBFS"] if shortest else ["-DCOLLAPSE"]
        level = "-O2" if variant is None else "-O0"
        _run(
            folder,
            "gcc",
            level,
            "-w",
            "-DSAFETY",
            "-DVECTORSZ=512",
            f"-DMEMLIM={MEGABYTES}",
            *how,
            "-o",
            "pan",
            "pan.c",
        )
        started = time.monotonic()
        said = _run(
            folder, "./pan", "-E", f"-m{DEPTH}"
        )  # -E: a process may wait for ever, the models look at their end
        seconds = time.monotonic() - started
        if re.search(r"search depth too small|out of memory|memory bound", said) or "errors:" not in said:
            raise RuntimeError(f"the search of {model.name} {sizes} is not complete:\n{said}")
        (states,) = re.findall(r"(\d+) states, stored", said)
        (depth,) = re.findall(r"depth reached (\d+)", said)
        if "errors: 0" in said:
            return Checked(int(states), int(depth), seconds)
        return Checked(
            int(states), int(depth), seconds, *_trace(model, _run(folder, "spin", "-T", "-t", *flags, model.path.name))
        )


def _trace(model: Model, told: str) -> tuple[str, tuple[str, ...]]:
    """The property that failed, by the line of the model on which it did, and what the model printed before."""
    steps, failure = told.split("spin: ", 1)
    line = re.match(rf"{model.name}\.pml:(\d+), Error: assertion violated", failure)
    name = re.search(r"PROPERTY\((\w+)", model.path.read_text().splitlines()[int(line[1]) - 1]) if line else None
    return name[1] if name else failure.splitlines()[0], tuple(map(str.strip, steps.splitlines()))


def _run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    if done.returncode and "errors:" not in said:
        raise RuntimeError(f"{' '.join(command)} failed:\n{said}")
    return said


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
