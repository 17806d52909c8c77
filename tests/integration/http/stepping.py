"""A process that runs a request in steps, notes every outside call in a file, and hangs where it is told to.

    python -m tests.integration.http.stepping URL FILE HANG

HANG: `before NAME`, `in NAME` or `after NAME` of a step, or `never`. It says "hanging" when it does, and then waits for
its end.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from sqlalchemy.ext.asyncio import async_sessionmaker

from outboxkit.http import ledger
from outboxkit.http.ledger import Fresh, Response
from outboxkit.http.steps import Steps
from outboxkit.runtime import process
from tests.support.ledger_requests import IN_STEPS

NAMES = ("reserve", "charge", "ship")


async def main(url: str, noted: Path, hang: str) -> None:
    engine = process.engine(url, name="stepping")
    sessions = async_sessionmaker(engine)
    async with sessions() as session, session.begin():
        fresh = await session.run_sync(ledger.begin, **IN_STEPS)
    if not isinstance(fresh, Fresh):
        print(type(fresh).__name__, flush=True)
        return
    steps = Steps(sessions, fresh)
    results = []
    for name in NAMES:
        await hang_at(f"before {name}", hang)
        results.append(await steps.step(name, calling(name, steps.key(name), noted, hang)))
        await hang_at(f"after {name}", hang)
    async with sessions() as session, session.begin():
        answer = Response(201, (), ",".join(results).encode())
        await session.run_sync(ledger.complete, fresh, answer)
    await engine.dispose()
    print("done", flush=True)


def calling(name: str, key: str, noted: Path, hang: str) -> Callable[[], Awaitable[str]]:
    async def call() -> str:
        with noted.open("a") as file:
            file.write(f"{name} {key}\n")
        await hang_at(f"in {name}", hang)
        return f"{name}d"

    return call


async def hang_at(here: str, wanted: str) -> None:
    if here == wanted:
        print("hanging", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
