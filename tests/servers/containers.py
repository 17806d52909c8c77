"""Servers in Docker containers, for machines with a Docker engine."""

import atexit
import contextlib
import gc
import warnings
from collections.abc import Callable, Mapping, Sequence

import docker.errors  # type: ignore[import-untyped]
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import DockerClient

from tests.servers.ports import free_ports
from tests.servers.waiting import not_started, wait_until

START_SECONDS = 120
STOP_SECONDS = 30
# requests' own errors are OSErrors.
ENGINE_ERRORS = (docker.errors.DockerException, OSError)


class Container:
    """A server in a container, on a fixed free port so that the URL outlives restarts.

    Ryuk, the testcontainers' reaper, removes the container if this Python dies.
    """

    controllable = True

    def __init__(
        self,
        *,
        image: str,
        port: int,
        environment: Mapping[str, str],
        command: Sequence[str],
        make_url: Callable[[str, int], str],
        answers: Callable[[str], bool],
        stop_signal: str,
    ) -> None:
        (host_port,) = free_ports(1)
        # The plain container, not testcontainers' PostgresContainer and RabbitMqContainer: importing the latter
        # warns, which is an error here, and their readiness checks are not repeated after a restart.
        self._container = (
            DockerContainer(image)
            .with_bind_ports(port, host_port)
            .with_envs(**environment)
            .with_kwargs(stop_signal=stop_signal)
        )
        if command:
            self._container.with_command(list(command))
        self._image = image
        self._port = port
        self._make_url = make_url
        self._answers = answers
        self._url: str | None = None
        atexit.register(self.close)

    @property
    def url(self) -> str:
        """Known once the container has started: the engine says on which address."""
        if self._url is None:
            raise RuntimeError("The container has no address yet: call start() first.")
        return self._url

    def start(self) -> None:
        """Create the container the first time, start it and wait for a connection."""
        try:
            if self._url is None:
                self._container.start()
                self._url = self._make_url(
                    self._container.get_container_host_ip(), self._container.get_exposed_port(self._port)
                )
            elif not self._runs():
                self._container.get_wrapped_container().start()
        except (*ENGINE_ERRORS, RuntimeError) as error:  # testcontainers' own are RuntimeErrors and TimeoutErrors
            log = self._log()
            self.close()
            raise not_started(self._image, f"{log}\n{error}") from error
        url = self._url
        if not wait_until(lambda: self._answers(url), self._runs, START_SECONDS):
            raise not_started(self._image, self._log())

    def stop(self) -> None:
        """Stop the container with the server's own signal for a clean stop."""
        if self._url is not None:
            self._container.get_wrapped_container().stop(timeout=STOP_SECONDS)

    def kill(self) -> None:
        """SIGKILL every process in the container."""
        if self._url is not None and self._runs():
            self._container.get_wrapped_container().kill()
            self._container.get_wrapped_container().wait(timeout=STOP_SECONDS)

    def execute(self, program: str, *arguments: str) -> None:
        """Run a program inside the container."""
        done = self._container.exec([program, *arguments])
        if done.exit_code:
            raise RuntimeError(f"{program} failed with status {done.exit_code}: {done.output.decode(errors='replace')}")

    def close(self) -> None:
        """Remove the container and its data."""
        atexit.unregister(self.close)
        with contextlib.suppress(docker.errors.APIError):  # removed already, here or by Ryuk
            self._container.stop()
        self._url = None

    def _log(self) -> str:
        with contextlib.suppress(*ENGINE_ERRORS, RuntimeError):
            return b"".join(self._container.get_logs()).decode(errors="replace")
        return ""

    def _runs(self) -> bool:
        self._container.reload()
        return self._container.status == "running"


def engine_has(image: str) -> bool:
    """Whether a Docker engine answers within a few seconds and has the image, or can pull it."""
    with warnings.catch_warnings():
        # docker leaves the socket of a failed connection to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        had = _engine_answers() and _pull(image)
        gc.collect()
    return had


def _engine_answers() -> bool:
    try:
        with contextlib.closing(DockerClient(timeout=3).client) as client:
            return bool(client.ping())
    except ENGINE_ERRORS:
        return False


def _pull(image: str) -> bool:
    name = testcontainers_config.hub_image_name_prefix + image
    try:
        with contextlib.closing(DockerClient().client) as client:
            try:
                client.images.get(name)
            except docker.errors.ImageNotFound:
                client.images.pull(name)
    except ENGINE_ERRORS:
        return False
    return True
