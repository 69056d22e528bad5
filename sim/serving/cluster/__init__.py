"""Clusters: from a TOML file or the name of a device to replicas with limits, costs and memory.

Knows no engine and no clock; what a recording's members weigh comes from their shapes.
"""

from .cluster import Cluster, Replica
from .cluster_file import ClusterFileError, read_cluster_file
from .make_cluster import make_cluster, open_cluster

__all__ = ["Cluster", "ClusterFileError", "Replica", "make_cluster", "open_cluster", "read_cluster_file"]
