"""`paceline` and `python -m paceline`."""

import sys

from .cli.app import command
from .cli.errors import run_command
from .cli.plain_stdout import showable_output


def main() -> None:
    """Run the command line and exit with its code."""
    with showable_output():
        code = run_command(command())
    sys.exit(code)


if __name__ == "__main__":
    main()
