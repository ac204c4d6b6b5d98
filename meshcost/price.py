"""Prices: what an event costs on the wire under an algorithm, and how much of it leaves the node.

This is where the ledger, the mesh and the collectives shelf meet. Which bytes cross nodes follows from the order of
ranks: rank i sits in node i // gpus_per_node, and an algorithm says to whom each position of a group sends.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache, partial
from math import ceil
from typing import NamedTuple

from sympy import Expr

from meshcost import symbols as sym
from meshcost.collectives import Algorithm
from meshcost.crossing import between, inter_node_rounds, pattern, placed, rounds, rows, shared
from meshcost.event import Event, Forms, Price, Run, Totals
from meshcost.formula import bind
from meshcost.mesh import Mesh
from meshcost.unroll import group_of


class _Traffic(NamedTuple):
    """What one call sends, as multiples of what its busiest rank sends.

    By such a rank between nodes; by all ranks of all groups; by those between nodes; and by one rank between nodes, where
    the ranks of a node share that out.
    """

    between: Fraction
    cluster: Fraction
    cluster_between: Fraction
    rail: Fraction


@dataclass
class Pricer:
    """Puts prices on the events of one mesh. ``algorithms`` names those that differ from the defaults."""

    mesh: Mesh
    algorithms: Mapping[str, str] = field(default_factory=dict)
    _traffic: dict[tuple[object, ...], _Traffic] = field(default_factory=dict)

    def price(self, event: Event, ranks: Expr) -> Event:
        """Return the event with its price; ``ranks`` is the size of its group as a formula."""
        algorithm = placed(event, self.mesh, self.algorithms.get(event.wire_op))
        runs = _runs(event, algorithm)
        sent_bytes, received_bytes = _busiest(event, algorithm, runs)
        traffic = self._sends(event, algorithm, _sent(event, sent_bytes, runs), even=not runs)
        inter_node_bytes = int(sent_bytes * traffic.between)
        price = Price(
            algorithm=algorithm.name,
            forms=Forms(partial(_forms, event, algorithm, ranks)),
            sent_bytes=sent_bytes,
            received_bytes=received_bytes,
            intra_node_bytes=sent_bytes - inter_node_bytes,
            inter_node_bytes=inter_node_bytes,
            cluster_sent_bytes=int(sent_bytes * traffic.cluster),
            cluster_inter_node_bytes=int(sent_bytes * traffic.cluster_between),
            rail_bytes=ceil(sent_bytes * traffic.rail),
            rounds=rounds(event, algorithm),
            inter_node_rounds=inter_node_rounds(event, algorithm, traffic.rail),
            runs=runs,
        )
        return replace(event, price=price)

    def _sends(self, event: Event, algorithm: Algorithm, sent: list[int], *, even: bool) -> _Traffic:
        """Add up one call of every group; of the busiest ranks, the one counts that sends the most between nodes.

        Where all ranks send alike, the shares do not depend on the size of the buffer.
        """
        where = (event.axes, event.stages, event.pairs, event.shift, event.split, event.wire_op == "send")
        what = (
            pattern(event, algorithm)
            if even
            else (event.wire_op, event.payload_bytes, event.item_bytes, algorithm)
        )
        key = (where, what)
        if key not in self._traffic:
            busiest, cluster, cluster_between, rail = (0, 0), 0, 0, Fraction(0)
            for nodes, groups in rows(event, self.mesh).items():
                crossing = between(event, algorithm, nodes, sent)
                busiest = max(busiest, *zip(sent, crossing, strict=True))
                cluster += groups * sum(sent)
                cluster_between += groups * sum(crossing)
                rail = max(rail, shared(crossing, nodes))
            alike = event.wire_op in algorithm.alike and event.wire_op != "send"
            sums = (busiest[1], cluster, cluster_between, rail if alike else busiest[1])
            self._traffic[key] = _Traffic(*(Fraction(x) / (busiest[0] or 1) for x in sums))
        return self._traffic[key]


def _busiest(event: Event, algorithm: Algorithm, runs: tuple[Run, ...]) -> tuple[int, int]:
    """Bytes (sent, received) of the busiest rank in one call: the most of any run, else what the closed form says."""
    if runs:
        return max(sent for _, sent, _ in runs), max(received for _, _, received in runs)
    form, numbers = algorithm.forms[event.wire_op], {sym.S: event.payload_bytes, sym.n: event.group_size}
    sent = bind(form.sent, numbers)
    return sent, sent if _passes_on(event) else bind(form.received, numbers)


def _passes_on(event: Event) -> bool:
    """Whether every rank sends to one and receives from another in the same call."""
    return event.op != event.wire_op


def _forms(event: Event, algorithm: Algorithm, ranks: Expr) -> tuple[Expr, Expr]:
    """Bytes (sent, received) of the busiest rank in all calls, in the symbols of the event."""
    item = event.item_bytes
    wire = algorithm.wire(
        event.wire_op, ranks=event.group_size, elements=event.payload_bytes // item, item=item
    )
    sent, received = (event.count * _put(form, event.payload, ranks) for form in wire)
    return sent, sent if _passes_on(event) else received


@lru_cache(maxsize=64)
def _put(form: Expr, payload: Expr, ranks: Expr) -> Expr:
    """Put a payload and a group into a closed form; many events share both."""
    return form.xreplace({sym.S: payload, sym.n: ranks})


#: Bytes that one rank sends, receives, and sends to other nodes.
Moved = tuple[int, int, int]


def moved(event: Event, mesh: Mesh, nodes: Sequence[int]) -> list[Moved]:
    """What each position of a group that lies on these nodes moves in all calls of an event."""
    price, calls = event.priced, event.calls
    sent = _sent(event, price.sent_bytes, price.runs)
    crossing = between(event, placed(event, mesh, price.algorithm), nodes, sent)
    received = _along(event, [(first, each) for first, _, each in price.runs] or [(0, price.received_bytes)])
    columns = ([calls * x for x in each] for each in (sent, received, crossing))
    return list(zip(*columns, strict=True))


def moved_by(event: Event, mesh: Mesh, rank: int) -> Moved:
    """What one rank moves in all calls of an event. It has to be of one of its stages."""
    price, calls = event.priced, event.calls
    row = None if event.pairs or event.split else mesh.row(rank, event.axes)
    if row is None or pattern(event, placed(event, mesh, price.algorithm)) != "next":
        group = group_of(event, mesh, rank)
        return moved(event, mesh, [member // mesh.gpus_per_node for member in group])[group.index(rank)]
    at = row.index(rank)  # a group may be of many ranks, and only the next one is asked for
    sent, received = price.at(at)
    there = row.rank(at + (event.shift if event.wire_op == "send" else 1))
    leaving = sent * (there // mesh.gpus_per_node != rank // mesh.gpus_per_node)
    return calls * sent, calls * received, calls * leaving


def totals_of(event: Event, mesh: Mesh, rank: int) -> Totals:
    """All calls of an event by one rank. The rank has to be of one of its stages."""
    sent, received, leaving = moved_by(event, mesh, rank)
    payload_bytes = event.calls * event.payload_bytes
    return Totals(event.calls, payload_bytes, sent, received, sent - leaving, leaving)


def _sent(event: Event, busiest: int, runs: tuple[Run, ...]) -> list[int]:
    """Bytes that each position of a group sends in one call; a message leaves only the stages that call."""
    if event.wire_op == "send" and event.axes == ("pipeline",):
        return [busiest * (stage in event.stages) for stage in range(event.group_size)]
    return _along(event, [(first, sent) for first, sent, _ in runs] or [(0, busiest)])


def _along(event: Event, runs: list[tuple[int, int]]) -> list[int]:
    """Write out (first position, amount) for every position of a group."""
    ends = (*(first for first, _ in runs[1:]), event.group_size)
    return [amount for (first, amount), end in zip(runs, ends, strict=True) for _ in range(first, end)]


def _runs(event: Event, algorithm: Algorithm) -> tuple[Run, ...]:
    """Runs of positions that send and receive alike; empty where all do.

    Where all ranks do the same, and with chunks near their own only, chunks differ in size at one place; far from that
    place and from both ends the amounts are one.
    """
    op, size = event.wire_op, event.group_size
    if op in ("send", "recv"):
        return ()
    elements = event.payload_bytes // event.item_bytes
    alike = op in algorithm.alike
    if alike and algorithm.even(op, size, elements):
        return ()
    alike = alike and isinstance(pattern(event, algorithm), str)
    edge = elements % size
    near = {at % size for place in (0, edge) for at in range(place - 3, place + 4)}
    runs: list[Run] = []
    places = sorted(near) if alike else range(size)
    moved = (
        (algorithm.position(op, at, size, elements) for at in places)
        if alike
        else algorithm.by_position(op, size, elements)
    )
    for at, sides in zip(places, moved, strict=True):
        sent, received = (x * event.item_bytes for x in sides)
        if runs and runs[-1][1:] == (sent, received):
            continue
        runs.append((at, sent, received))
    return tuple(runs)
