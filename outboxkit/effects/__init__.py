"""Calls to systems that cannot tell a repetition, mail for one: made once, or decided by a policy where nobody knows.

The intention is committed before the call, and the result after it. A crash in between leaves an intention without a
result: whether the call was made is *unknown*, and then the caller's policy decides, and is reported. Each step has a
transaction of its own, apart from the handler's.
"""

from outboxkit.effects.once import once
from outboxkit.effects.record import AMBIGUOUS, Effect

__all__ = ["AMBIGUOUS", "Effect", "once"]
