"""SIGKILLs at random moments, for storms."""

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

from tests.acceptance.worker_process import WorkerProcess


@contextmanager
def killed_at_random(
    start: Callable[[], WorkerProcess], started: str, numbers: random.Random, *, kills: int
) -> Iterator[None]:
    """A process that is killed while it works, and started again, so often; the last one is let live."""
    end = Event()

    def run() -> None:
        for _ in range(kills):
            process = start()
            process.wait_for(started)
            end.wait(numbers.uniform(0, 1.5))
            process.kill()
        process = start()
        process.wait_for(started)
        end.wait()
        assert process.stop() == 0

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        try:
            yield
        finally:
            end.set()
        running.result()
