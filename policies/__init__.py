"""What decides: the contract, the state of a request, the loop that asks, and the policies by name.

Standard library and numpy only; imports neither traces nor either world.
"""

from .about import About, Observable
from .check import CheckReport, check_policy
from .contract import Commit, Draft, Outcome, Policy, PolicyError, Step, Verify
from .observation import Observation, PendingToken
from .policy_options import PolicySpecError
from .pool import Member, Pool
from .registry import make_policy
from .rules import (
    Band,
    Deferral,
    Divergence,
    Equilibrium,
    Exact,
    Facts,
    Fuzzy,
    Lenience,
    Ratio,
    Rule,
    Typical,
    Vouched,
)
from .signal import Signal
from .stops import ConfidenceBelow, EntropyAbove, GapBelow, ProductBelow, Stop

__all__ = [
    "About",
    "Band",
    "CheckReport",
    "Commit",
    "ConfidenceBelow",
    "Deferral",
    "Divergence",
    "Draft",
    "EntropyAbove",
    "Equilibrium",
    "Exact",
    "Facts",
    "Fuzzy",
    "GapBelow",
    "Lenience",
    "Member",
    "Observable",
    "Observation",
    "Outcome",
    "PendingToken",
    "Policy",
    "PolicyError",
    "PolicySpecError",
    "Pool",
    "ProductBelow",
    "Ratio",
    "Rule",
    "Signal",
    "Step",
    "Stop",
    "Typical",
    "Verify",
    "Vouched",
    "check_policy",
    "make_policy",
]
