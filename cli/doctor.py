"""`paceline doctor`: what is installed, what this machine can do, what is kept here."""

from ..studies.doctor import doctor as diagnose
from .output import JsonOption, check_json_path, show


def doctor(json: JsonOption = None) -> None:
    """Versions, extras and how to install them, what this machine can do, caches, and profiles that may be stale."""
    check_json_path(json)
    show(json, diagnose())
