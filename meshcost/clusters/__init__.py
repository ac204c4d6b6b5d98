"""How fast a byte is: clusters, their links, and numbers fitted to measurements.

Knows nothing of models, strategies or algorithms. Every number carries its unit, its direction and its source.
"""

from meshcost.clusters.cluster import Cluster, clusters, read_cluster
from meshcost.clusters.link import Bandwidth, Fit, Latency, Link, LinkClass, Speed

__all__ = ["Bandwidth", "Cluster", "Fit", "Latency", "Link", "LinkClass", "Speed", "clusters", "read_cluster"]
