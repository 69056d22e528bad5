"""Types of the names that `__init__.py` imports when they are asked for."""

from .arrival import Arrival as Arrival
from .arrival import Turns as Turns
from .arrival import Workload as Workload
from .arrival import WorkloadAbout as WorkloadAbout
from .arrival import WorkloadOptions as WorkloadOptions
from .formats import lines_of_workload as lines_of_workload
from .opening import open_workload as open_workload
from .opening import with_options as with_options
from .registered import GivesArrivals as GivesArrivals
