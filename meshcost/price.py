"""Prices: what an event costs on the wire under an algorithm, and how much of it leaves the node.

This is where the ledger, the mesh and the collectives shelf meet. Which bytes cross nodes follows from the order of
ranks: rank i sits in node i // gpus_per_node, and an algorithm says to whom each position of a group sends.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from math import gcd
from typing import NamedTuple

from sympy import Expr

from meshcost import symbols as sym
from meshcost.collectives import Algorithm, choose
from meshcost.collectives.algorithm import Pattern
from meshcost.collectives.hierarchical import OnNodes
from meshcost.event import Event, Price, Run
from meshcost.formula import bind
from meshcost.mesh import Mesh


class Split(NamedTuple):
    """What the rank that sends the most between nodes sends: (between nodes, all), as counts of equal parts."""

    between: int
    total: int


@dataclass
class Pricer:
    """Puts prices on the events of one mesh. ``algorithms`` names those that differ from the defaults."""

    mesh: Mesh
    algorithms: Mapping[str, str] = field(default_factory=dict)
    _splits: dict[tuple[object, ...], Split] = field(default_factory=dict)
    _formulas: dict[tuple[Expr, Expr, Expr], Expr] = field(default_factory=dict)

    def price(self, event: Event, ranks: Expr) -> Event:
        """Return the event with its price; ``ranks`` is the size of its group as a formula."""
        algorithm = self._placed(event, choose(event.op, self.algorithms.get(event.op)))
        size, payload, item = event.group_size, event.payload_bytes, event.item_bytes
        sent, received = algorithm.wire(event.op, ranks=size, elements=payload // item, item=item)
        numbers = {sym.S: payload, sym.n: size}
        sent_bytes = bind(sent, numbers)
        split = self._split(event, algorithm)
        between = sent_bytes * split.between // split.total if split.total else 0
        price = Price(
            algorithm=algorithm.name,
            sent=event.count * self._formula(sent, event.payload, ranks),
            received=event.count * self._formula(received, event.payload, ranks),
            sent_bytes=sent_bytes,
            received_bytes=bind(received, numbers),
            intra_node_bytes=sent_bytes - between,
            inter_node_bytes=between,
            runs=_runs(event, algorithm),
        )
        return replace(event, price=price)

    def _formula(self, form: Expr, payload: Expr, ranks: Expr) -> Expr:
        """Put a payload and a group into a closed form; many events share both."""
        key = (form, payload, ranks)
        if key not in self._formulas:
            self._formulas[key] = form.xreplace({sym.S: payload, sym.n: ranks})
        return self._formulas[key]

    def _split(self, event: Event, algorithm: Algorithm) -> Split:
        pattern = _pattern(algorithm, event.op, event.group_size)
        key = (event.axes, event.stages, event.pairs, event.shift, event.op == "send", pattern)
        if key not in self._splits:
            nodes = self._nodes(event)
            if pattern == "all":
                self._splits[key] = _to_all(nodes)
            elif pattern == "next":
                self._splits[key] = _to_next(event, nodes)
            elif pattern == "switch":
                self._splits[key] = Split(int(any(len(set(row)) > 1 for row in nodes)), 1)
            else:
                self._splits[key] = _along(pattern, nodes)
        return self._splits[key]

    def _placed(self, event: Event, algorithm: Algorithm) -> Algorithm:
        """Tell an algorithm that knows nodes how many neighbours in the group share one."""
        if not isinstance(algorithm, OnNodes):
            return algorithm
        shared = (len(list(run)) for row in self._nodes(event) for _, run in groupby(row))
        return algorithm.placed(gcd(*shared))

    def _nodes(self, event: Event) -> list[list[int]]:
        """Node of each member, for groups that stand for all in which the event happens."""
        groups = self.mesh.samples(event.axes, event.stages)
        nodes = [[rank // self.mesh.gpus_per_node for rank in group] for group in groups]
        return (
            [[row[stage] for stage in pair] for row in nodes for pair in event.pairs]
            if event.pairs
            else nodes
        )


def _to_next(event: Event, nodes: list[list[int]]) -> Split:
    """A rank that sends to the next one sends either everything between nodes, or nothing."""
    message, members = event.op in ("send", "recv"), event.group_size
    shift = event.shift if message else 1
    one_way = message and event.axes == ("pipeline",)
    senders = event.stages if one_way else range(members)
    crosses = any(row[at] != row[(at + shift) % members] for row in nodes for at in senders)
    return Split(int(crosses), 1)


def _to_all(nodes: list[list[int]]) -> Split:
    """A rank with the fewest neighbours in its own node sends the most between nodes."""
    members = len(nodes[0])
    fewest = min(min(Counter(row).values()) for row in nodes)
    return Split(members - fewest, members - 1)


def _along(edges: tuple[tuple[int, int, int], ...], nodes: list[list[int]]) -> Split:
    """Of the ranks that send the most cells, one that sends the most of them between nodes."""
    sent = Counter[int]()
    for source, _, cells in edges:
        sent[source] += cells
    most = max(sent.values(), default=0)
    between = 0
    for row in nodes:
        crossing = Counter[int]()
        for source, target, cells in edges:
            crossing[source] += cells * (row[source] != row[target])
        between = max(between, *(crossing[source] for source in sent if sent[source] == most))
    return Split(between, most)


@lru_cache(maxsize=64)
def _pattern(algorithm: Algorithm, op: str, ranks: int) -> Pattern:
    return algorithm.pattern(op, ranks)


def _runs(event: Event, algorithm: Algorithm) -> tuple[Run, ...]:
    """Runs of positions that send and receive alike; empty where all do.

    Where all ranks do the same, and with chunks near their own only, chunks differ in size at one place; far from that
    place and from both ends the amounts are one.
    """
    op, size = event.op, event.group_size
    if op in ("send", "recv"):
        return ()
    elements = event.payload_bytes // event.item_bytes
    alike = op in algorithm.alike
    if alike and algorithm.even(op, size, elements):
        return ()
    alike &= isinstance(_pattern(algorithm, op, size), str)
    edge = elements % size
    near = {at % size for place in (0, edge) for at in range(place - 3, place + 4)}
    runs: list[Run] = []
    for at in sorted(near) if alike else range(size):
        sent, received = (x * event.item_bytes for x in algorithm.position(op, at, size, elements))
        if runs and runs[-1][1:] == (sent, received):
            continue
        runs.append((at, sent, received))
    return tuple(runs)
