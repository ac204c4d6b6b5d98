"""Seconds: how long the communication of an event takes on a cluster, alone and with nothing hidden behind it.

seconds = rounds x latency + bytes / bandwidth, with the latency of the slowest class of links that the call uses, and
the bytes of whichever class takes longest: links inside a node and between nodes work at the same time. A ``recv`` takes
no seconds of its own: it is the other end of a neighbour's ``send``, whose row has the time of the message.
"""

from meshcost.clusters import Cluster, LinkClass
from meshcost.collectives import ALGORITHMS
from meshcost.event import Event
from meshcost.formula import value
from meshcost.ledger import Ledger
from meshcost.symbols import S, n

#: What has to stand beside every number of seconds.
CAVEAT = "Seconds are communication alone, one call after the other: nothing is hidden behind computation."


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
    used = _bytes_by_class(event)
    if not used:
        return 0.0
    speeds = {kind: cluster.link(kind).speed(event.op) for kind in used}
    wait = rounds(event) * max(speed.latency.seconds for speed in speeds.values())
    return wait + max(speeds[kind].seconds(rounds=0, sent_bytes=size) for kind, size in used.items())


def rounds(event: Event) -> int:
    """Rounds that one call takes under the algorithm of its price."""
    algorithm = ALGORITHMS[event.priced.algorithm]
    form = algorithm.forms[event.op].rounds
    return int(value(form, {n: event.group_size, S: event.payload_bytes}))


def step_seconds(ledger: Ledger, cluster: Cluster, *, stage: int | None = None) -> float:
    """Time of all calls of one rank in a step: of ``stage``, or of the busiest one."""
    chosen = ledger.at_stage(ledger.busiest_stage if stage is None else stage)
    return sum(event.calls * seconds(event, cluster) for event in chosen)


def _bytes_by_class(event: Event) -> dict[LinkClass, int]:
    """Bytes of one call by class of links; a rank that receives more than it sends waits for that."""
    price = event.priced
    most = 0 if event.op == "recv" else max(price.sent_bytes, price.received_bytes)
    sent = price.intra_node_bytes + price.inter_node_bytes
    between = most * price.inter_node_bytes // sent if sent else 0
    found: dict[LinkClass, int] = {"intra_node": most - between, "inter_node": between}
    return {kind: size for kind, size in found.items() if size}
