"""The folder, the errors and the recording that commands are tried in."""

from ..cli.conftest import made_once, plain_errors, trace

__all__ = ["made_once", "plain_errors", "trace"]
