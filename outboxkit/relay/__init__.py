"""The relay: claim → publish → settle.

`relay` runs the turns, `pipeline` takes batches through them. `claim` and `settle` are one batch's transaction. Decided
without I/O: `order` (the rows that may go), `decisions` (the fate of each row), `floor` (the start of a claim),
`shares` (the keys that a relay leaves to others).
"""

from outboxkit.relay.decisions import RelayPolicy
from outboxkit.relay.relay import Relay
from outboxkit.relay.report import Drained

__all__ = ["Drained", "Relay", "RelayPolicy"]
