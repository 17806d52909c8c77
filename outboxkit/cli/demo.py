def demo() -> None:
    """x"""
