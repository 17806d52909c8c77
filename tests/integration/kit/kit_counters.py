"""A module of the application that the one of a handler imports."""

COUNT = 0


def bump() -> None:
    global COUNT  # noqa: PLW0603
    COUNT += 1
