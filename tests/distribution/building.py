"""Distributions, and environments to install them into."""

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build(kind: str, folder: Path, source: Path = ROOT) -> Path:
    """Build an `sdist` or a `wheel` of the source tree, with this environment's hatchling and without a network."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(folder.resolve())]
    subprocess.run(command, cwd=source, check=True, capture_output=True, text=True)
    (path,) = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return path


def environment(folder: Path) -> Path:
    """Make an environment that is bare, without pip; returns its interpreter."""
    venv.create(folder, symlinks=True)
    return folder / "bin" / "python"


def site_packages(python: Path) -> Path:
    """The folder of an environment's libraries."""
    version = "python{}.{}".format(*sys.version_info)
    return python.parents[1] / "lib" / version / "site-packages"


def beside_these_libraries(wheel: Path, folder: Path) -> Path:
    """Make an environment with the wheel, and for the rest the libraries of this one; returns its interpreter."""
    python = environment(folder)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site_packages(python))
    (site_packages(python) / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python
