"""Help for the tests of an application, and the suite that every broker must pass."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from outboxkit.errors.extras import needs_extra

if TYPE_CHECKING:
    from outboxkit.testing.messages import assert_round_trips, deliver, deliver_all, message_of, outbox_messages
    from outboxkit.testing.once import assert_effects_once
    from outboxkit.testing.order import assert_order_does_not_matter

_MODULES = {"assert_effects_once": "once", "assert_order_does_not_matter": "order"}
__all__ = [
    "assert_effects_once",
    "assert_order_does_not_matter",
    "assert_round_trips",
    "deliver",
    "deliver_all",
    "message_of",
    "outbox_messages",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a name when it is first used: the plugin is loaded in suites that use none of this."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with needs_extra(f"{__name__}.{name}"):
            return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'messages')}"), name)
