"""The command `outboxkit`, also as `python -m outboxkit`. Without its libraries it says how to install them."""

import sys


def main() -> None:
    """Run the command line."""
    try:
        from outboxkit import cli  # noqa: PLC0415 - typer, which an extra brings
    except ModuleNotFoundError as error:
        from outboxkit import compose  # noqa: PLC0415

        text, code = compose.explain(error)
        sys.stderr.write(f"outboxkit: {text}\n")
        sys.exit(code)
    cli.main()


if __name__ == "__main__":
    main()
