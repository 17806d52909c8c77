"""The demo."""


def demo() -> None:
    """Do the demo."""
