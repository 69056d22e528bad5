"""The simulated world: outcomes from a recording, seconds from a cost model, time from SimPy.

Never imports the runtime and never needs torch.
"""

from .cost import CostModel, CostRangeError, TableCost
from .costs import make_cost
from .devices import Device, device_sheet
from .recorded_pool import recorded_pool
from .replay import ReplayWorld, UnrecordedContextError
from .roofline import RooflineCost
from .simulate import Scenario, simulate
from .tables import TraceTables

__all__ = [
    "CostModel",
    "CostRangeError",
    "Device",
    "ReplayWorld",
    "RooflineCost",
    "Scenario",
    "TableCost",
    "TraceTables",
    "UnrecordedContextError",
    "device_sheet",
    "make_cost",
    "recorded_pool",
    "simulate",
]
