"""Recordings imported from other engines' logs: rounds by drafter, their store and what they hold.

Imports the record of models from `..meta` and the folder both stores share; nothing of tries.
"""

from .meta import DrafterInfo, RoundsMeta
from .recording import RoundsRecording
from .rounds import TARGET_ALONE, UNKNOWN_DRAFTED, Rounds, RoundsRequest
from .store import read_rounds, write_rounds
from .summary import MethodSummary, RoundsGroup, RoundsSummary

__all__ = [
    "TARGET_ALONE",
    "UNKNOWN_DRAFTED",
    "DrafterInfo",
    "MethodSummary",
    "Rounds",
    "RoundsGroup",
    "RoundsMeta",
    "RoundsRecording",
    "RoundsRequest",
    "RoundsSummary",
    "read_rounds",
    "write_rounds",
]
