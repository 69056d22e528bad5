"""`paceline` and `python -m paceline`."""

import gc
import os
import signal
import sys


def _end(*_: object) -> None:
    """Ctrl-C before a command has begun, or after its end: nothing is there to be kept, so leave at once."""
    os.write(2, b"paceline: error: interrupted\n")
    os._exit(130)


# Before all imports of ours.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end)


def main() -> None:
    """Run the command line and exit with its code."""
    gc.disable()  # imports leave no garbage
    from .cli.app import command  # noqa: PLC0415
    from .cli.errors import run_command, showable_output  # noqa: PLC0415

    gc.enable()
    gc.freeze()
    with showable_output():
        code = run_command(command())
    if signal.getsignal(signal.SIGINT) is _end:
        # All is written. The interpreter's own end takes handlers away, and the process would die of a Ctrl-C then.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


if __name__ == "__main__":
    main()
