"""The busiest rank of each stage: the one that sends most in a step, all its calls together.

Every event has a busiest rank of its own, and no rank need be that of all of them: a sum of four bytes spares another
rank than a shard that does not divide. So ranks are compared by what they send in all events; of those that send the
most, the one counts that sends the most of it between nodes, and then the lowest.

Most events cost every rank the same. As a rule one of the first ranks is the busiest in all others, too, and none can be
busier than that. Only where there is no such rank, all are gone through.
"""

from collections.abc import Iterator, Sequence

from meshcost.crossing import parts
from meshcost.event import Event
from meshcost.ledger import Ledger
from meshcost.mesh import Group, Mesh
from meshcost.price import Moved, moved, moved_by

#: So many ranks are tried first. Where in its node a rank sits decides; the first nodes have the ends of groups.
_NODES_TRIED = 4


def busiest_ranks(ledger: Ledger) -> tuple[int, ...]:
    """The busiest rank of each stage."""
    mesh, events = ledger.mesh, [event for event in ledger if not event.all_pay_alike]
    found = [_busiest_in_all(events, mesh, stage) for stage in range(mesh.stages)]
    if None in found:
        sent, leaving = _sums(events, mesh)
        found = [
            max(mesh.ranks_of(stage), key=lambda rank: (sent[rank], leaving[rank], -rank))
            for stage in range(mesh.stages)
        ]
    return tuple(rank for rank in found if rank is not None)


def _busiest_in_all(events: Sequence[Event], mesh: Mesh, stage: int) -> int | None:
    """The first rank of a stage that is the busiest in each of its events."""
    own = {_busiest_of(event): event for event in events if stage in event.stages}.values()
    tried = zip(range(_NODES_TRIED * mesh.gpus_per_node), mesh.ranks_of(stage), strict=False)
    return next((rank for _, rank in tried if all(_is_busiest(rank, event, mesh) for event in own)), None)


def _busiest_of(event: Event) -> object:
    """What decides which ranks are the busiest of an event: of buffers that divide evenly, not their size."""
    price, size = event.priced, event.payload_bytes if event.priced.runs else 0
    return event.axes, event.pairs, event.split, event.wire_op, event.shift, price.algorithm, price.runs, size


def _is_busiest(rank: int, event: Event, mesh: Mesh) -> bool:
    sent, _, leaving = moved_by(event, mesh, rank)
    return (sent, leaving) == (event.totals.sent_bytes, event.totals.inter_node_bytes)


def _sums(events: Sequence[Event], mesh: Mesh) -> tuple[list[int], list[int]]:
    """Bytes sent by every rank in some events, and those of them that it sends between nodes."""
    sent, leaving = [0] * mesh.world_size, [0] * mesh.world_size
    for event in events:
        found: dict[tuple[int, ...], list[Moved]] = {}
        for part in _callers(event, mesh):
            node = part[0] // mesh.gpus_per_node
            nodes = tuple([rank // mesh.gpus_per_node - node for rank in part])
            if nodes not in found:
                found[nodes] = moved(event, mesh, nodes)
            for rank, (each, _, out) in zip(part, found[nodes], strict=True):
                sent[rank] += each
                leaving[rank] += out
    return sent, leaving


def _callers(event: Event, mesh: Mesh) -> Iterator[Group]:
    """All groups that make a call; what other stages of a group along the pipeline would send is nobody's."""
    for group in mesh.groups(event.axes):
        for part in parts(event, group):
            if "pipeline" in event.axes or mesh.stage(part[0]) in event.stages:
                yield part
