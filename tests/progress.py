"""What a slow machine is told of a command that takes more than ten seconds; no test and no page depends on it."""

import re

PROGRESS = re.compile(r"^paceline: (?!error|failed).*\d (s|min|h)(, about [\d.]+ (s|min|h) left.*)?\n", re.MULTILINE)


def without_progress(text):
    """What a command wrote, without the lines that say how far it is."""
    return PROGRESS.sub("", text)
