"""Calls to systems that cannot tell a repetition, mail for one: made once, or decided by a policy if that is unknown.

The intention is committed before the call, and the result after it. A crash in between leaves an intention without a
result. It is *unknown* then whether the call was made: the caller's policy decides, and a warning is logged. Each step
has a transaction of its own, apart from the handler's.
"""

from outboxkit.effects.once import once
from outboxkit.effects.record import CERTAIN, Effect

__all__ = ["CERTAIN", "Effect", "once"]
