"""Seconds: how long the communication of an event takes on a cluster, alone and with nothing hidden behind it.

seconds = rounds x latency + bytes / bandwidth. Rounds that wait for a message between nodes have the latency between
nodes, others that inside. Of the bytes those count that take longest: links inside a node and between nodes work at the
same time. A ``recv`` takes no seconds of its own: it is the other end of a neighbour's ``send``, whose row has the time
of the message.

Two things are as NCCL does them. The members of a ring on one node share out what leaves it, each over its own network
adapter: one channel of NCCL leaves the node by each of them (NVIDIA/nccl src/graph/search.cc), and a published all-reduce
over 4 nodes of 8 GPUs has a bus bandwidth of 382 GB/s where one adapter carries 50. And an all-reduce by ring is one by
tree where that is faster, for small messages: a chain inside each node and a double binary tree between nodes, with the
hops that src/graph/tuning.cc counts, over which a rank sends 2 S and not 2 S (n - 1) / n. Where links were measured over
Gloo, neither is assumed: Gloo has one ring.
"""

from math import ceil, log2
from typing import NamedTuple

from meshcost.clusters import Cluster, LinkClass
from meshcost.event import Event

#: What has to stand beside every number of seconds.
CAVEAT = "Seconds are communication alone, one call after the other: nothing is hidden behind computation."
#: What they assume of the library that communicates.
_ASSUMED = {
    "nccl": "As NCCL would: the ranks of a node share its network adapters; an all-reduce by ring goes by tree if faster.",
    "gloo": "Links are as measured over Gloo: each rank sends by itself what it sends, by the algorithm of the call.",
}


def caveat(cluster: Cluster) -> str:
    """What has to stand beside every number of seconds on a cluster."""
    return f"{CAVEAT} {_ASSUMED[cluster.library]}"


class Transfer(NamedTuple):
    """Bytes of one call that one rank moves over one class of links, at so many bytes a second.

    Where ``turns`` is more than one, so many ranks of a node share a network adapter and wait for each other.
    """

    link: LinkClass
    size: int
    turns: float
    bandwidth: float

    @property
    def seconds(self) -> float:
        """Bytes by bandwidth, as often as ranks take turns."""
        return self.size * self.turns / self.bandwidth


class Wait(NamedTuple):
    """Rounds of one call that wait for a message over one class of links, each for its latency in seconds."""

    link: LinkClass
    rounds: int
    latency: float

    @property
    def seconds(self) -> float:
        """Rounds times latency."""
        return self.rounds * self.latency


class Timing(NamedTuple):
    """What the seconds of one call are made of: rounds that wait, and bytes over links that work at the same time."""

    waits: tuple[Wait, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    #: Whether an all-reduce by ring goes by tree, as that is faster for a small message.
    by_tree: bool = False

    @property
    def seconds(self) -> float:
        """The rounds one after the other, and the transfer that takes longest."""
        return max((x.seconds for x in self.transfers), default=0.0) + sum(x.seconds for x in self.waits)


def timing(event: Event, cluster: Cluster) -> Timing:
    """Time of one call of an event by its busiest rank, in its parts.

    The event has to be priced. Raises LedgerError if it is not, JobError if the cluster does not say how fast a class of
    links is that the call uses.

    >>> from meshcost.clusters import read_cluster
    >>> from meshcost.job import Job, analyze
    >>> job = Job(model="llama-3-8b", parallel={"data": 8}, batch={"sequence": 8192, "global_batch": 8})
    >>> event = analyze(job).events[0]                   # 16 GB of gradients, all-reduced inside one node
    >>> parts = timing(event, read_cluster("h100-dgx"))
    >>> (bytes_of,), (wait,) = parts.transfers, parts.waits
    >>> bytes_of.size, bytes_of.bandwidth, wait.rounds, wait.latency
    (28105914368, 370000000000.0, 14, 1.83e-06)
    >>> round(parts.seconds, 4)                          # 28,105,914,368 / 370e9 + 14 * 1.83e-6
    0.076
    """
    transfers = _transfers(event, cluster)
    if not transfers:
        return Timing()
    price = event.priced
    inside, between = price.rounds - price.inter_node_rounds, price.inter_node_rounds
    as_priced = Timing(_waits(inside, between, event.op, cluster), transfers)
    if event.op != "all_reduce" or price.algorithm != "ring" or cluster.library != "nccl":
        return as_priced
    return min(as_priced, _by_tree(event, as_priced, cluster), key=lambda timing: timing.seconds)


def _by_tree(event: Event, by_ring: Timing, cluster: Cluster) -> Timing:
    """The same all-reduce over NCCL's tree: each rank passes all of it up and down, and not all but its own chunk."""
    ranks = event.group_size
    transfers = tuple(x._replace(size=-(-x.size * ranks // (ranks - 1))) for x in by_ring.transfers)
    return Timing(_waits(*_hops_of_tree(event), event.op, cluster), transfers, by_tree=True)


def _waits(inside: int, between: int, op: str, cluster: Cluster) -> tuple[Wait, ...]:
    hops: dict[LinkClass, int] = {"intra_node": inside, "inter_node": between}
    return tuple(
        Wait(kind, number, cluster.link(kind).speed(op).latency.seconds)
        for kind, number in hops.items()
        if number
    )


def _hops_of_tree(event: Event) -> tuple[int, int]:
    """Hops inside a node and between nodes, up NCCL's tree and down again."""
    price = event.priced
    members = max(1, price.sent_bytes // price.rail_bytes) if price.rail_bytes else event.group_size
    return 2 * (members - 1), 2 * ceil(log2(-(-event.group_size // members)))


def _transfers(event: Event, cluster: Cluster) -> tuple[Transfer, ...]:
    """Bytes of one call by class of links; a rank that receives more than it sends waits for that.

    Ranks that take turns at an adapter are as slow as if each had more to send.
    """
    price = event.priced
    most = 0 if event.op == "recv" else max(price.sent_bytes, price.received_bytes)
    leaving = price.rail_bytes if cluster.library == "nccl" else price.inter_node_bytes
    between = most * leaving // price.sent_bytes if price.sent_bytes else 0
    found: dict[LinkClass, int] = {"intra_node": most - between, "inter_node": between}
    turns = dict.fromkeys(found, 1.0)
    if between and (adapters := cluster.link("inter_node").adapters):
        turns["inter_node"] = max(1.0, cluster.gpus_per_node / adapters)
    return tuple(
        Transfer(kind, size, turns[kind], cluster.link(kind).speed(event.op).bandwidth.bytes_per_second)
        for kind, size in found.items()
        if size
    )
