"""The relay: claim → publish → settle.

`relay` runs the turns; `batch` is one transaction's claim and settle. What is decided is decided without I/O: `order`
(who must wait for whom), `settlement` (what becomes of a row), `reply` (what a destination's answer becomes), `floor`
(below which position nothing can be).
"""

from outboxkit.relay.decisions import Policy
from outboxkit.relay.relay import Relay
from outboxkit.relay.report import Drained

__all__ = ["Drained", "Policy", "Relay"]
