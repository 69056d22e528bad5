"""The engine that both worlds and every policy stand on: steps, sessions, the loop, and what it says to a world.

Standard library and numpy only; imports neither policies nor traces nor either world.
"""

from .contract import Commit, Draft, Outcome, PolicyError, Step, Verify
from .ledger import Ledger, OpRecord, StepRecord
from .loop import Loop
from .observation import Load, Observation, PendingToken
from .policy import Policy
from .pool import Member, Pool
from .prefill import Start
from .results import Deferred, Drafted, DraftResults, Failed, Judged, Results, VerifyResults
from .session import Session
from .signal import Signal
from .world import DraftItem, DraftOp, Op, VerifyItem, VerifyOp, World

__all__ = [
    "Commit",
    "Deferred",
    "Draft",
    "DraftItem",
    "DraftOp",
    "DraftResults",
    "Drafted",
    "Failed",
    "Judged",
    "Ledger",
    "Load",
    "Loop",
    "Member",
    "Observation",
    "Op",
    "OpRecord",
    "Outcome",
    "PendingToken",
    "Policy",
    "PolicyError",
    "Pool",
    "Results",
    "Session",
    "Signal",
    "Start",
    "Step",
    "StepRecord",
    "Verify",
    "VerifyItem",
    "VerifyOp",
    "VerifyResults",
    "World",
]
