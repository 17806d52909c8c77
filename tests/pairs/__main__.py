"""`python -m tests.pairs`: write the page that says which scenario has which pair of features."""

from pathlib import Path

from tests.pairs.features import page

Path("docs/explanation/pairs.md").write_text(page())
