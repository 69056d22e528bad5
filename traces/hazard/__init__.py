"""What recorded rounds do not tell, drawn from what they do tell: acceptance by depth, request and place.

Needs numpy only; imports the record of rounds and nothing else of the package.
"""

from .counts import DepthCounts, Told, count_depths, told_by
from .depths import DepthFit, fit_depths
from .drafter import DrafterFit, fit_drafter
from .draws import Hazard

__all__ = [
    "DepthCounts",
    "DepthFit",
    "DrafterFit",
    "Hazard",
    "Told",
    "count_depths",
    "fit_depths",
    "fit_drafter",
    "told_by",
]
