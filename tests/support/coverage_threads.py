"""A plugin of coverage: the main greenlet of each thread stays for as long as the process.

Coverage asks each thread for its greenlet, and remembers it weakly. After the thread's end the greenlet library drops
it in a pending call of the main thread. There coverage's dictionary has a callback in Python, which is traced: and
CPython 3.11 goes round for ever in a traced function that a pending call runs, if a second one is added meanwhile
(python/cpython#118095). Without coverage nobody asks for these greenlets.
"""

import threading
from typing import Any
from unittest.mock import patch

from greenlet import getcurrent, greenlet

_KEPT: list[greenlet] = []


def coverage_init(_registry: Any, _options: dict[str, Any]) -> None:
    """Have each thread that starts from now on leave its greenlet here.

    A hook of `threading.setprofile` would do, but a thread ends without a word if another one sets its hook meanwhile.
    """
    set_ident = vars(threading.Thread)["_set_ident"]  # the first thing that a thread does

    def keep(thread: threading.Thread) -> None:
        set_ident(thread)
        _KEPT.extend([getcurrent()] * 2)  # of one that is kept once, greenlet looks for the keeper, and may not find it

    patch.object(threading.Thread, "_set_ident", keep).start()
