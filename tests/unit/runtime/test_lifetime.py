"""How a process ends: by signals, real ones, in processes of their own, and whatever handlers have left behind."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from outboxkit.runtime import lifetime
from outboxkit.runtime.settings import Settings

BEGINNING = """
import asyncio, sys
from datetime import timedelta
from outboxkit.runtime import lifetime

async def service(stop):
    print("ready", flush=True)
"""
END = """
sys.exit(lifetime.leave(lifetime.run(service, shutdown_timeout=timedelta(seconds={seconds}), cancelled={cancelled})))
"""


@contextmanager
def running(service: str, *, seconds: float = 3600, cancelled: int = 0) -> Iterator["subprocess.Popen[str]"]:
    """A process whose service is at work."""
    code = BEGINNING + service + END.format(seconds=seconds, cancelled=cancelled)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            yield child
        finally:
            child.kill()


def ended(child: "subprocess.Popen[str]") -> tuple[int, str]:
    out, err = child.communicate(timeout=60)
    assert err == ""
    return child.returncode, out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_service_finish(number: signal.Signals):
    with running("    await stop.wait()\n    print('finished')\n    return 0") as child:
        child.send_signal(number)
        assert ended(child) == (0, "finished\n")


CLEANS_UP = """
    try:
        await stop.wait()
        print("asked", flush=True)
        await asyncio.Event().wait()
    finally:
        print("gave back", flush=True)
"""


def test_what_is_not_finished_in_time_is_given_back():
    with running(CLEANS_UP, seconds=0.05, cancelled=3) as child:
        child.terminate()
        assert ended(child) == (3, "asked\ngave back\n")


def test_a_second_signal_does_not_wait():
    with running(CLEANS_UP) as child:
        child.terminate()
        assert child.stdout is not None
        assert child.stdout.readline() == "asked\n"
        child.send_signal(signal.SIGINT)
        assert ended(child) == (0, "gave back\n")


def test_a_cancellation_that_was_swallowed_is_not_the_last_one():
    """`asyncio.wait_for` may swallow one before Python 3.12."""
    swallows = f"    try:{CLEANS_UP.replace(chr(10), chr(10) + '    ')}except asyncio.CancelledError:\n        pass\n"
    with running(f"    lifetime.CANCEL_AGAIN_SECONDS = 0.05\n{swallows}{CLEANS_UP}", seconds=0.05) as child:
        child.terminate()
        assert ended(child) == (0, "asked\ngave back\nasked\ngave back\n")


def test_a_service_that_cannot_give_back_ends_all_the_same():
    hangs = """
    lifetime.GIVE_BACK_SECONDS = 0.1
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
"""
    with running(hangs, seconds=0.05) as child:
        child.terminate()
        code, out = ended(child)
    assert code == 0
    assert "what is in hand could not be given back in time" in out


def test_a_stop_ends_before_supervisors_kill():
    allowed = 30  # seconds, in the units, the Compose file and the manifests
    assert Settings.model_fields["shutdown_timeout"].default.total_seconds() == 25
    assert allowed > 25 + lifetime.GIVE_BACK_SECONDS + lifetime.LEFT_SECONDS


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("ending = SystemExit(3); ending.add_note('in handler X'); raise ending", "SystemExit: 3, in handler X"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("asyncio.get_running_loop().stop()", "the event loop was stopped"),
        ("[task.cancel() for task in asyncio.all_tasks()]", "CancelledError"),
    ],
)
def test_code_of_the_application_that_ends_the_loop_ends_the_process_with_one_line(ends: str, told: str):
    service = f"""
    async def left_behind():
        {ends}
    task = asyncio.create_task(left_behind())
    await asyncio.Event().wait()
"""
    with running(service) as child:
        out, err = child.communicate(timeout=60)
    lines = [line for line in out.splitlines() if "code of the application ended the process" in line]
    assert (child.returncode, len(lines), told in lines[0], err) == (1, 1, True, "")


@pytest.mark.parametrize(
    "left",
    [
        "asyncio.create_task(asyncio.to_thread(time.sleep, 3600))",
        "threading.Thread(target=time.sleep, args=(3600,)).start()",
        "thread = HandlerThread(); thread.start(); thread.put(lambda: time.sleep(3600))",
        "asyncio.create_task(swallows())",
    ],
)
def test_nothing_that_a_handler_left_behind_holds_up_the_end(left: str):
    service = f"""
    import threading, time
    from outboxkit.consumer.threads import HandlerThread
    async def swallows():
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass
    {left}
    await asyncio.sleep(0.1)
    return 4
"""
    with running(service) as child:
        child.communicate(timeout=120)
    assert child.returncode == 4


def test_a_failure_while_stopping_is_not_hidden():
    with running("    await stop.wait()\n    raise ZeroDivisionError") as child:
        child.terminate()
        assert "ZeroDivisionError" in child.communicate(timeout=60)[1]
        assert child.returncode == 1


async def test_a_task_ends_though_a_library_has_swallowed_its_cancellation(monkeypatch: pytest.MonkeyPatch):
    """As `asyncio.wait_for` does before Python 3.12 if what it waits for is ready in the same moment."""
    monkeypatch.setattr(lifetime, "CANCEL_AGAIN_SECONDS", 0.01)
    swallowed = list[int]()

    async def repeat() -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if swallowed:
                    raise
                swallowed.append(1)

    task = asyncio.create_task(repeat())
    await asyncio.sleep(0)
    await asyncio.wait_for(lifetime.end_tasks([task]), 60)
    assert (swallowed, task.cancelled()) == ([1], True)
