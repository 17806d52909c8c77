"""`outboxkit dead`: list dead letters, put them back, or discard them."""

from outboxkit.cli.commands import group
from outboxkit.cli.dead import reading, resolving

app = group(
    "dead",
    "0 done, 1 failed, 2 wrong usage or settings, 3 part of it could not be done.",
    list=reading.list_,
    show=reading.show,
    replay=resolving.replay,
    discard=resolving.discard,
)
