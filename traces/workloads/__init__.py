"""Workloads: requests that arrive, read from the files of others or our own, or drawn; memory follows none of them.

Imports what `traces` imports, and knows no engine.
"""

from .arrival import Arrival, Turns, Workload, WorkloadAbout

__all__ = ["Arrival", "Turns", "Workload", "WorkloadAbout"]
