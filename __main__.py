"""`paceline` and `python -m paceline`."""

import sys

from .cli.app import command
from .cli.errors import run_command


def main() -> None:
    """Run the command line and exit with its code."""
    sys.exit(run_command(command()))


if __name__ == "__main__":
    main()
