"""What a verifier accepts: declarative values whose test is plain arithmetic and comparisons.

Imports nothing but numbers: a rule knows neither sessions nor worlds.
"""

from .deferral import Deferral
from .equilibrium import Equilibrium
from .facts import Facts, unknown_facts
from .judging import Band, Divergence, Exact, Fuzzy, Ratio, Rule, Ruling, Typical, Vouched, ruling

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
