"""The simulated world: outcomes from a recording, seconds from a cost model, time from SimPy.

Never imports the runtime and never needs torch.
"""

from .cost.base import CostModel, CostRangeError
from .cost.devices import Device, device_sheet
from .cost.make import make_cost
from .cost.roofline import RooflineCost
from .cost.table import TableCost
from .cost.timed import TimedCost
from .recorded_pool import recorded_pool
from .replay_tables import ReplayTables, tables_of
from .rounds.tables import RoundsTables
from .rounds.world import RoundsWorld
from .simulate import Scenario, simulate
from .tries.tables import TrieTables
from .tries.world import ReplayWorld, UnrecordedContextError

__all__ = [
    "CostModel",
    "CostRangeError",
    "Device",
    "ReplayTables",
    "ReplayWorld",
    "RooflineCost",
    "RoundsTables",
    "RoundsWorld",
    "Scenario",
    "TableCost",
    "TimedCost",
    "TrieTables",
    "UnrecordedContextError",
    "device_sheet",
    "make_cost",
    "recorded_pool",
    "simulate",
    "tables_of",
]
