"""What a verifier accepts: declarative values whose test is plain arithmetic and comparisons.

Imports nothing but numbers: a rule knows neither sessions nor worlds.
"""

from .acceptance import Band, Divergence, Exact, Fuzzy, Ratio, Rule, Ruling, Typical, Vouched, ruling
from .deferral import Deferral
from .equilibrium import Equilibrium
from .facts import Facts, unknown_facts

__all__ = [
    "Band",
    "Deferral",
    "Divergence",
    "Equilibrium",
    "Exact",
    "Facts",
    "Fuzzy",
    "Ratio",
    "Rule",
    "Ruling",
    "Typical",
    "Vouched",
    "ruling",
    "unknown_facts",
]
