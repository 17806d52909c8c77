"""What is kept, for how long, how much that is, and when the next day is dropped."""

from starlette.responses import Response

from outboxkit.console.visit import Visit, page
from outboxkit.operators.keeping import read_keeping
from outboxkit.operators.messages import read_now


async def show_retention(visit: Visit) -> Response:
    """Show what retention works on."""
    kept = await visit.read(read_keeping, visit.console.installation.settings)
    return visit.page("retention.html", kept=kept, now=await visit.read(read_now))


ROUTES = (page("/retention", show_retention, name="retention"),)
