"""Routers: which replica serves a request.

They see signals of replicas and never the replicas, and know neither engine nor clock.
"""

from .dispatcher import Dispatcher, WatchedReplica
from .router import ReplicaSignals, Router, RouterError, RouterSetting, Seen
from .spec import RouterSpec, RouterSpecError

__all__ = [
    "Dispatcher",
    "ReplicaSignals",
    "Router",
    "RouterError",
    "RouterSetting",
    "RouterSpec",
    "RouterSpecError",
    "Seen",
    "WatchedReplica",
]
