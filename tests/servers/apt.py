"""Installing a server's programs on Debian and Ubuntu."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.server import ServersUnavailable

POLICY = Path("/usr/sbin/policy-rc.d")


def may_install() -> bool:
    """Whether this is root on a machine with apt-get."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(package: str) -> None:
    """Install a package without starting its service; ServersUnavailable if apt-get fails."""
    print(f"installing {package} with apt-get", file=sys.stderr, flush=True)
    with _services_stay_down():
        _apt_get("update")
        _apt_get("install", "-y", "--no-install-recommends", package)


def _apt_get(*arguments: str) -> None:
    done = subprocess.run(
        ("apt-get", "-o", "DPkg::Lock::Timeout=300", *arguments), text=True, check=False,
        env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-20:])
        raise ServersUnavailable(f"apt-get {' '.join(arguments)} failed:\n{tail}")


@contextmanager
def _services_stay_down() -> Iterator[None]:
    """Refuse the packages' services by the distribution's own switch; one that is there already is left alone."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()
