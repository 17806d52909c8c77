"""A plugin of coverage: the main greenlet of each thread stays for as long as the process.

Coverage asks each thread for its greenlet, and remembers it weakly. After the thread's end the greenlet library drops
it in a pending call of the main thread. There coverage's dictionary has a callback in Python, which is traced: and
CPython 3.11 goes round for ever in a traced function that a pending call runs, if a second one is added meanwhile
(python/cpython#118095). Without coverage nobody asks for these greenlets.
"""

import sys
import threading
from typing import Any

from greenlet import getcurrent, greenlet

_KEPT: list[greenlet] = []


def coverage_init(_registry: Any, _options: dict[str, Any]) -> None:
    """Have each thread that starts from now on leave its greenlet here."""
    threading.setprofile(_keep)


def _keep(*_event: Any) -> None:
    """The first event of a thread, and the only one that is heard."""
    sys.setprofile(None)
    _KEPT.extend([getcurrent()] * 2)  # of one that is kept once, greenlet looks for the keeper, and may not find it
