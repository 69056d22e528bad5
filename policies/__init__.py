"""What decides: the contract, the state of a request, the loop that asks, and the policies by name.

Standard library and numpy only; imports neither traces nor either world.
"""

from .check import CheckReport, check_policy
from .contract import Commit, Draft, Outcome, Policy, PolicyError, Step, Verify
from .observation import Observation, PendingToken
from .pool import Member, Pool
from .registry import PolicySpecError, make_policy
from .rules import Divergence, Exact, Facts, Lenience, Ratio, Rule, Typical
from .signal import Signal
from .stops import ConfidenceBelow, EntropyAbove, GapBelow, ProductBelow, Stop

__all__ = [
    "CheckReport",
    "Commit",
    "ConfidenceBelow",
    "Divergence",
    "Draft",
    "EntropyAbove",
    "Exact",
    "Facts",
    "GapBelow",
    "Lenience",
    "Member",
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
    "check_policy",
    "make_policy",
]
