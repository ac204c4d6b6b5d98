"""Seconds: how long the communication of an event takes on a cluster, alone and with nothing hidden behind it.

seconds = rounds x latency + bytes / bandwidth. Rounds that wait for a message between nodes have the latency between
nodes, others that inside. Of the bytes those count that take longest: links inside a node and between nodes work at the
same time. A ``recv`` takes no seconds of its own: it is the other end of a neighbour's ``send``, whose row has the time
of the message.

Two things are as NCCL does them. The members of a ring on one node share out what leaves it, each over its own network
adapter: one channel of NCCL leaves the node by each of them (NVIDIA/nccl src/graph/search.cc), and a published all-reduce
over 4 nodes of 8 GPUs has a bus bandwidth of 382 GB/s where one adapter carries 50. And an all-reduce by ring is one by
tree where that is faster, for small messages: a chain inside each node and a binary tree between nodes, with the hops
that src/graph/tuning.cc counts. Where links were measured over Gloo, neither is assumed: Gloo has one ring.
"""

from math import ceil, log2

from meshcost.clusters import Cluster, LinkClass
from meshcost.event import Event

#: What has to stand beside every number of seconds.
CAVEAT = "Seconds are communication alone, one call after the other: nothing is hidden behind computation."
#: What they assume of the library that communicates.
_ASSUMED = {
    "nccl": "As NCCL would: the ranks of a node share its network adapters, and a small all-reduce by ring goes by tree.",
    "gloo": "Links are as measured over Gloo: each rank sends by itself what it sends, by the algorithm of the call.",
}


def caveat(cluster: Cluster) -> str:
    """What has to stand beside every number of seconds on a cluster."""
    return f"{CAVEAT} {_ASSUMED[cluster.library]}"


def seconds(event: Event, cluster: Cluster) -> float:
    """Time of one call of an event by its busiest rank.

    The event has to be priced. Raises LedgerError if it is not, JobError if the cluster does not say how fast a class of
    links is that the call uses.

    >>> from meshcost.clusters import read_cluster
    >>> from meshcost.job import Job, analyze
    >>> job = Job(model="llama-3-8b", parallel={"data": 8}, batch={"sequence": 8192, "global_batch": 8})
    >>> event = analyze(job).events[0]                   # 16 GB of gradients, all-reduced inside one node
    >>> round(seconds(event, read_cluster("h100-dgx")), 4)
    0.076
    """
    used = _bytes_by_class(event, cluster)
    if not used:
        return 0.0
    speeds = {kind: cluster.link(kind).speed(event.op) for kind in used}
    moved = max(speeds[kind].seconds(rounds=0, sent_bytes=size) for kind, size in used.items())
    price = event.priced
    hops = [(price.rounds - price.inter_node_rounds, price.inter_node_rounds)]
    if event.op == "all_reduce" and price.algorithm == "ring" and cluster.library == "nccl":
        hops.append(_tree(event))
    return moved + min(_wait(inside, between, event.op, cluster) for inside, between in hops)


def _wait(inside: int, between: int, op: str, cluster: Cluster) -> float:
    hops: dict[LinkClass, int] = {"intra_node": inside, "inter_node": between}
    return sum(
        number * cluster.link(kind).speed(op).latency.seconds for kind, number in hops.items() if number
    )


def _tree(event: Event) -> tuple[int, int]:
    """Hops inside a node and between nodes, up NCCL's tree and down again."""
    price = event.priced
    members = max(1, price.sent_bytes // price.rail_bytes) if price.rail_bytes else event.group_size
    return 2 * (members - 1), 2 * ceil(log2(-(-event.group_size // members)))


def _bytes_by_class(event: Event, cluster: Cluster) -> dict[LinkClass, float]:
    """Bytes of one call by class of links; a rank that receives more than it sends waits for that.

    Ranks that take turns at an adapter are as slow as if each had more to send.
    """
    price = event.priced
    most = 0 if event.op == "recv" else max(price.sent_bytes, price.received_bytes)
    leaving = price.rail_bytes if cluster.library == "nccl" else price.inter_node_bytes
    between = most * leaving // price.sent_bytes if price.sent_bytes else 0
    found: dict[LinkClass, float] = {"intra_node": most - between, "inter_node": between}
    if between and (adapters := cluster.link("inter_node").adapters):
        found["inter_node"] = between * max(1, cluster.gpus_per_node / adapters)
    return {kind: size for kind, size in found.items() if size}
