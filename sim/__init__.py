"""The simulated world: outcomes from a recording, seconds from a cost model, time from SimPy.

Never imports the runtime and never needs torch.
"""

from .cost.cost_file import TableCost
from .cost.make import make_cost
from .recorded_pool import recorded_pool
from .rounds.tables import RoundsTables
from .simulate import Scenario, simulate
from .tries.tables import TrieTables

__all__ = ["RoundsTables", "Scenario", "TableCost", "TrieTables", "make_cost", "recorded_pool", "simulate"]
