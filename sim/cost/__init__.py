"""Seconds of forwards: from device sheets, measured tables, lines, or the seconds a recording holds.

Imports nothing of the simulator; replay asks it and knows no more of a device.
"""

from .base import LOOKUP_S, CostModel, CostRangeError, DraftTerms, RoundCost, RoundScale
from .cost_file import FileCost, read_cost_file
from .devices import LAYER_LAUNCH_S, Device, device_sheet
from .drafting import DrafterFigures
from .grid import CostGrid, GridProfile
from .linear import CostLine
from .made_up import made_up_cost
from .make import OnDevice, default_cost, make_cost, measured_on_device
from .roofline import RooflineCost
from .table import Profile, TableCost
from .timed import TimedCost
from .what_if.other_device import MappedCost, MappedRoundCost, Reading
from .what_if.other_model import Price, PricedAsCost
from .what_if.scaled import ScaledCost, ScaledRoundCost, scaled

__all__ = [
    "LAYER_LAUNCH_S",
    "LOOKUP_S",
    "CostGrid",
    "CostLine",
    "CostModel",
    "CostRangeError",
    "Device",
    "DraftTerms",
    "DrafterFigures",
    "FileCost",
    "GridProfile",
    "MappedCost",
    "MappedRoundCost",
    "OnDevice",
    "Price",
    "PricedAsCost",
    "Profile",
    "Reading",
    "RooflineCost",
    "RoundCost",
    "RoundScale",
    "ScaledCost",
    "ScaledRoundCost",
    "TableCost",
    "TimedCost",
    "default_cost",
    "device_sheet",
    "made_up_cost",
    "make_cost",
    "measured_on_device",
    "read_cost_file",
    "scaled",
]
