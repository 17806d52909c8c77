"""A server that somebody else runs: tests only connect to it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from tests.servers.server import ServersUnavailable


@dataclass(frozen=True)
class External:
    """The server behind a URL in an environment variable."""

    url: str
    variable: str
    connect: Callable[[str], None]
    controllable: bool = False

    def start(self) -> None:
        """Check that the server answers; ServersUnavailable if it does not."""
        try:
            self.connect(self.url)
        except Exception as error:
            raise ServersUnavailable(
                f"The server in {self.variable} does not answer: {error!r}. Correct the URL, or unset the variable."
            ) from error

    def stop(self) -> None:
        """Refused."""
        self._refuse()

    def kill(self) -> None:
        """Refused."""
        self._refuse()

    def close(self) -> None:
        """Leave the server as it is."""

    def _refuse(self) -> NoReturn:
        raise RuntimeError(f"The server in {self.variable} is not ours to stop: look at `controllable` first.")
