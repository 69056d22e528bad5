"""Recordings imported from other engines' logs: rounds by drafter, their store and what they hold.

Imports the record of models from `..meta` and the folder both stores share; nothing of tries.
"""

from .recording import (
    TARGET_ALONE,
    UNKNOWN_DRAFTED,
    DrafterInfo,
    Rounds,
    RoundsMeta,
    RoundsRequest,
    RoundsTrace,
)
from .store import read_rounds, write_rounds
from .summary import MethodSummary, RoundsGroup, RoundsSummary, summarise_rounds

__all__ = [
    "TARGET_ALONE",
    "UNKNOWN_DRAFTED",
    "DrafterInfo",
    "MethodSummary",
    "Rounds",
    "RoundsGroup",
    "RoundsMeta",
    "RoundsRequest",
    "RoundsSummary",
    "RoundsTrace",
    "read_rounds",
    "summarise_rounds",
    "write_rounds",
]
