"""What recorded rounds do not tell, drawn from what they do tell: acceptance by depth, request and place.

Imports the record of rounds and nothing else of the package; nothing of tries, stores or replay.
"""

from .beside import Beside, Outcome
from .counts import DepthCounts, Told, count_depths, told_by
from .depths import DepthFit, fit_depths
from .drafter import DrafterFit, fit_drafter
from .draws import Hazard
from .lengths import DraftLengths

__all__ = [
    "Beside",
    "DepthCounts",
    "DepthFit",
    "DraftLengths",
    "DrafterFit",
    "Hazard",
    "Outcome",
    "Told",
    "count_depths",
    "fit_depths",
    "fit_drafter",
    "told_by",
]
