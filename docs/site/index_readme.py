"""The README as a package index shows it: its links lead into the repository, for an index has no files beside it.

Hatchling calls this when it builds (`[tool.hatch.metadata.hooks.custom]` in pyproject.toml).
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
RELATIVE = re.compile(r"(?P<image>!\[[^\]]*)?\]\((?!\w+:|#)")


def with_absolute_links(text: str, repository: str) -> str:
    """The text with the repository's address in front of each relative link, and code as it is."""
    parts = FENCED.split(text)
    parts[::2] = [RELATIVE.sub(lambda found: _absolute(found, repository), part) for part in parts[::2]]
    return "".join(parts)


def _absolute(found: re.Match[str], repository: str) -> str:
    """The beginning of a link to a page, or of an image: that needs the file itself."""
    image = found["image"] or ""
    return f"{image}]({repository}/{'raw' if image else 'blob'}/main/"


class IndexReadme(MetadataHookInterface):
    """The metadata's `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set it."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        links = with_absolute_links(text, metadata["urls"]["Source"])
        metadata["readme"] = {"content-type": "text/markdown", "text": links}
