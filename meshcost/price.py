"""Prices: what an event costs on the wire under an algorithm, and how much of it leaves the node.

This is where the ledger, the mesh and the collectives shelf meet. Which bytes cross nodes follows from the order of
ranks: rank i sits in node i // gpus_per_node, and an algorithm says to whom each position of a group sends.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from sympy import Expr

from meshcost import symbols as sym
from meshcost.collectives import Algorithm, choose
from meshcost.formula import bind
from meshcost.ledger import Event, Price
from meshcost.mesh import Mesh

if TYPE_CHECKING:
    import numpy as np


class Split(NamedTuple):
    """Messages of the rank that sends the most between nodes: (between nodes, all), as counts of equal parts."""

    between: int
    total: int


@dataclass
class Pricer:
    """Puts prices on the events of one mesh. ``algorithms`` names those that differ from the defaults."""

    mesh: Mesh
    algorithms: Mapping[str, str] = field(default_factory=dict)
    _splits: dict[tuple[object, ...], Split] = field(default_factory=dict)

    def price(self, event: Event, ranks: Expr) -> Event:
        """Return the event with its price; ``ranks`` is the size of its group as a formula."""
        algorithm = choose(event.op, self.algorithms.get(event.op))
        size, payload = event.group_size, event.payload_bytes
        even = payload % (size * event.item_bytes) == 0
        sent, received = algorithm.wire(event.op, even=even, item=event.item_bytes)
        numbers = {sym.S: payload, sym.n: size}
        sent_bytes = bind(sent, numbers)
        split = self._split(event, algorithm)
        between = sent_bytes * split.between // split.total if split.total else 0
        symbols = {sym.S: event.payload, sym.n: ranks}
        price = Price(
            algorithm=algorithm.name,
            sent=event.count * sent.xreplace(symbols),
            received=event.count * received.xreplace(symbols),
            sent_bytes=sent_bytes,
            received_bytes=bind(received, numbers),
            intra_node_bytes=sent_bytes - between,
            inter_node_bytes=between,
            by_position=_by_position(event, algorithm, even=even),
        )
        return replace(event, price=price)

    def _split(self, event: Event, algorithm: Algorithm) -> Split:
        pattern = algorithm.pattern(event.op, event.group_size)
        key = (event.axes, event.stages, event.pairs, event.shift, event.op == "send", pattern)
        if key not in self._splits:
            nodes = self._nodes(event)
            if pattern == "all":
                self._splits[key] = _to_all(nodes)
            elif pattern == "next":
                self._splits[key] = self._to_next(event, nodes)
            else:
                self._splits[key] = _along(pattern, nodes)
        return self._splits[key]

    def _nodes(self, event: Event) -> "np.ndarray":
        """Node of each member of each group in which the event happens, shape [groups, members]."""
        import numpy as np

        groups = self.mesh.groups(event.axes)
        nodes = groups // self.mesh.gpus_per_node
        if event.pairs:
            return np.concatenate([nodes[:, list(pair)] for pair in event.pairs])
        if "pipeline" in event.axes or self.mesh.stages == 1:
            return nodes
        here = np.isin(self.mesh.stage_of(groups[:, 0]), event.stages)
        return nodes[here]

    def _to_next(self, event: Event, nodes: "np.ndarray") -> Split:
        import numpy as np

        crosses = nodes != np.roll(nodes, -(event.shift or 1), axis=1)
        if event.op in ("send", "recv") and event.axes == ("pipeline",):
            crosses = crosses[:, list(event.stages)]
        return Split(int(crosses.any()), 1)


def _to_all(nodes: "np.ndarray") -> Split:
    """A rank with the fewest neighbours in its own node sends the most between nodes."""
    import numpy as np

    groups, members = nodes.shape
    labels = nodes + np.arange(groups)[:, None] * (int(nodes.max()) + 1)
    fewest = int(np.unique(labels, return_counts=True)[1].min())
    return Split(members - fewest, members - 1)


def _along(edges: tuple[tuple[int, int], ...], nodes: "np.ndarray") -> Split:
    """Of the ranks that send the most messages, one that sends the most of them between nodes."""
    import numpy as np

    if not edges:
        return Split(0, 0)
    source, target = np.array(edges).T
    sent = np.bincount(source, minlength=nodes.shape[1])
    crosses = (nodes[:, source] != nodes[:, target]).astype(int)
    between = np.zeros(nodes.shape, dtype=int)
    np.add.at(between, (slice(None), source), crosses)
    return Split(int(between[:, sent == sent.max()].max()), int(sent.max()))


def _by_position(event: Event, algorithm: Algorithm, *, even: bool) -> tuple[tuple[int, int], ...]:
    if event.op in ("send", "recv"):
        return ()
    if (even or not algorithm.splits(event.op)) and isinstance(algorithm.pattern(event.op, event.group_size), str):
        return ()
    elements = event.payload_bytes // event.item_bytes
    positions = algorithm.by_position(event.op, event.group_size, elements)
    return tuple((sent * event.item_bytes, received * event.item_bytes) for sent, received in positions)
