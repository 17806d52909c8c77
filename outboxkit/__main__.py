"""`python -m outboxkit`: the command line, if the command itself is not on the path."""

from outboxkit.cli import main

if __name__ == "__main__":
    main()
