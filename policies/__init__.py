"""What decides: the algorithms, what they are built from, and the policies by name.

Standard library and numpy only; imports neither traces nor either world.
"""

from ..decoding.contract import Commit, Draft, Outcome, Overlap, PolicyError, Step, Verify
from ..decoding.observation import Observation, PendingToken
from ..decoding.policy import Policy
from ..decoding.pool import Member, Pool
from ..decoding.rules.acceptance import Band, Divergence, Exact, Fuzzy, Ratio, Rule, Typical, Vouched
from ..decoding.rules.cascade_deferral import Deferral
from ..decoding.rules.draft_stops import ConfidenceBelow, EntropyAbove, GapBelow, ProductBelow, RefusalAbove, Stop
from ..decoding.rules.equilibrium import Equilibrium
from ..decoding.rules.facts import Facts
from ..decoding.rules.signal import Signal
from .about import About, Observable
from .check import CheckReport, check_policy
from .registry import PolicySpecError
from .spec import PolicySpec, make_policy

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
    "Member",
    "Observable",
    "Observation",
    "Outcome",
    "Overlap",
    "PendingToken",
    "Policy",
    "PolicyError",
    "PolicySpec",
    "PolicySpecError",
    "Pool",
    "ProductBelow",
    "Ratio",
    "RefusalAbove",
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
