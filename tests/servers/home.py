"""The private folder in which a server of our own lives, and the processes that run there."""

import atexit
import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from tests.servers.server import ServersUnavailable

RUN_SECONDS = 300
GUARD = Path(__file__).with_name("guard.py")
SEARCH_PATH = os.pathsep.join((
    os.environ.get("PATH", os.defpath), "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/opt/homebrew/bin",
))  # fmt: skip


class _Identity(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


class Process:
    """A process that leads a session of its own."""

    def __init__(self, popen: subprocess.Popen[bytes], power_cut: signal.Signals) -> None:
        self.pid = popen.pid
        self.power_cut = power_cut
        self._popen = popen

    def alive(self) -> bool:
        """Whether it still runs."""
        return self._popen.poll() is None

    def end(self, signum: signal.Signals, patience_seconds: float) -> None:
        """Signal the process, wait for it, and SIGKILL whatever of its group is left."""
        if not self.alive():
            return
        if signum == signal.SIGKILL:
            _signal_group(self.pid, signum)
        else:
            self._popen.send_signal(signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(patience_seconds)
        _signal_group(self.pid, signal.SIGKILL)
        self._popen.wait()


class Home:
    """A temporary folder, owned by an unprivileged account where the tests run as root.

    Everything started here is killed and the folder removed when this Python ends.
    """

    def __init__(self, account: str) -> None:
        self._account = _unprivileged(account)
        # Not $TMPDIR: a Unix socket's path may have 107 characters only, and the account must be able to enter.
        self.folder = Path(tempfile.mkdtemp(prefix="okit-", dir="/tmp"))
        self._give(self.folder)
        self._processes: list[Process] = []
        self._guard = subprocess.Popen(
            (sys.executable, "-I", "-S", GUARD, self.folder),
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        atexit.register(self.close)

    def make_folder(self, name: str) -> Path:
        """A new folder inside, owned by the account."""
        path = self.folder / name
        path.mkdir(mode=0o700)
        self._give(path)
        return path

    def write(self, name: str, text: str) -> Path:
        """A new file inside that only the account may read."""
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_text(text)
        self._give(path)
        return path

    def run(self, command: Sequence[str | Path], environment: Mapping[str, str]) -> None:
        """Run a program to its end; ServersUnavailable with what it said if it failed, or did not come to its end."""
        try:
            done = subprocess.run(
                command, cwd=self.folder, env=self._complete(environment), stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=RUN_SECONDS, **self._identity(),
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise ServersUnavailable(f"{command[0]} did not end in {RUN_SECONDS} s:\n{error.output!r}") from None
        if done.returncode:
            tail = "\n".join(done.stdout.decode(errors="replace").splitlines()[-20:])
            raise ServersUnavailable(f"{command[0]} failed with status {done.returncode}:\n{tail}")

    def spawn(
        self, command: Sequence[str | Path], environment: Mapping[str, str], log: str, power_cut: signal.Signals
    ) -> Process:
        """Start a program that stays; its output is appended to the file `log` inside."""
        with (self.folder / log).open("ab") as output:
            popen = subprocess.Popen(
                command, cwd=self.folder, env=self._complete(environment), stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True, **self._identity(),
            )  # fmt: skip
        process = Process(popen, power_cut)
        self._processes.append(process)
        self._tell(f"watch {process.pid} {int(power_cut)}")
        return process

    def end(self, process: Process, signum: signal.Signals, patience_seconds: float) -> None:
        """End a process that was spawned here and forget it."""
        process.end(signum, patience_seconds)
        self._tell(f"forget {process.pid}")
        if process in self._processes:
            self._processes.remove(process)

    def close(self) -> None:
        """Kill what runs here, latest first, and remove the folder."""
        atexit.unregister(self.close)
        for process in reversed(tuple(self._processes)):
            self.end(process, process.power_cut, patience_seconds=10)
        if self._guard.stdin and not self._guard.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.close()
            self._guard.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _tell(self, line: str) -> None:
        if self._guard.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.write(f"{line}\n".encode())
                self._guard.stdin.flush()

    def _complete(self, environment: Mapping[str, str]) -> dict[str, str]:
        # Nothing is inherited: a PGHOST or RABBITMQ_NODENAME of the caller must not reach a private server.
        return {"PATH": SEARCH_PATH, "LANG": "C.UTF-8", "HOME": str(self.folder), **environment}

    def _identity(self) -> _Identity:
        if self._account is None:
            return {}
        return {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}

    def _give(self, path: Path) -> None:
        if self._account is not None:
            os.chown(path, self._account.pw_uid, self._account.pw_gid)


def _signal_group(group: int, signum: signal.Signals) -> None:
    # macOS answers EPERM, not ESRCH, for a group of which only an unreaped process is left.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signum)


def _unprivileged(preferred: str) -> pwd.struct_passwd | None:
    """The account to run as, None for the present one; PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in (preferred, "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise ServersUnavailable(f"Run the tests as an ordinary user, or create the account {preferred!r}.")
