"""The simulated world: outcomes from a recording, seconds from a cost model, time from SimPy.

Never imports the runtime and never needs torch.
"""

from .contexts import TrieTables
from .cost.files import TableCost
from .cost.make import make_cost
from .recorded import recorded_pool
from .simulate import Scenario, simulate

__all__ = ["Scenario", "TableCost", "TrieTables", "make_cost", "recorded_pool", "simulate"]
