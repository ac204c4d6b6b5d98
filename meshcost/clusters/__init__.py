"""How fast a byte is: clusters, and for now how many accelerators share a node.

Knows nothing of models, strategies or algorithms. Every number carries its source.
"""

from meshcost.clusters.cluster import Cluster, clusters, read_cluster

__all__ = ["Cluster", "clusters", "read_cluster"]
