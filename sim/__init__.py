"""The simulated world: outcomes from a recording, seconds from a cost model; under load SimPy moves the clock.

Never imports the runtime and never needs torch.
"""

from .contexts import TrieTables
from .cost.by_name import make_cost
from .cost.files import TableCost
from .recorded import recorded_pool
from .replay import Replay
from .simulate import Scenario, simulate

__all__ = ["Replay", "Scenario", "TableCost", "TrieTables", "make_cost", "recorded_pool", "simulate"]
