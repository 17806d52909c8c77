"""What a test may do with a PostgreSQL or RabbitMQ server, wherever the server came from."""

from typing import Protocol


class ServersUnavailable(Exception):  # a state of the machine, not a mistake in the code
    """No server can be had, or one did not start; the message says what to do about it."""


class Server(Protocol):
    """A PostgreSQL or RabbitMQ server that tests connect to."""

    @property
    def url(self) -> str:
        """Where to connect, the same before and after every restart (a container's: known once started)."""

    @property
    def controllable(self) -> bool:
        """Whether tests may stop, kill and start the server again."""

    def start(self) -> None:
        """Return once the server has accepted a real connection; does nothing if it is up already."""

    def stop(self) -> None:
        """Stop cleanly; the data stays."""

    def kill(self) -> None:
        """Stop as a power cut would, with no time to tidy up; what was committed stays."""

    def close(self) -> None:
        """Stop and remove everything, the data too."""


class OwnServer(Server, Protocol):
    """One in which a test may also run the server's own programs."""

    def execute(self, program: str, *arguments: str) -> None:
        """Run it to its end; an error if it fails."""
