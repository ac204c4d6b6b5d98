"""Crossing: which bytes of a call leave the node of the rank that sends them.

An algorithm says to whom each position of a group sends, the mesh on which nodes they sit: rank i is on node
i // gpus_per_node.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import groupby
from math import ceil, gcd

from meshcost.collectives import Algorithm, choose
from meshcost.collectives.algorithm import Pattern
from meshcost.collectives.hierarchical import OnNodes
from meshcost.event import Event
from meshcost.formula import value
from meshcost.mesh import Group, Mesh
from meshcost.symbols import S, n

#: Operations in which a rank that sends to all others sends each of them its own chunk of the buffer.
_TO_EACH_ITS_OWN = ("all_to_all", "reduce_scatter")


def rows(event: Event, mesh: Mesh) -> Mapping[tuple[int, ...], int]:
    """The node of each position, in every way in which groups that make this call lie on nodes; and how many lie so."""
    found = Counter[tuple[int, ...]]()
    for group, number in mesh.samples(event.axes, event.stages).items():
        nodes = tuple([rank // mesh.gpus_per_node for rank in group])
        for row in parts(event, nodes):
            found[row] += number
    return found


def parts(event: Event, group: Group) -> list[Group]:
    """What really makes the call of a group along the axes: all of it, some stages of it, or runs of neighbours."""
    if event.split:
        return [group[start : start + event.split] for start in range(0, len(group), event.split)]
    return [tuple(group[stage] for stage in pair) for pair in event.pairs] or [group]


def placed(event: Event, mesh: Mesh, name: str | None) -> Algorithm:
    """The algorithm of a name; one that knows nodes is told how many neighbours in the group share one."""
    algorithm = choose(event.wire_op, name)
    if not isinstance(algorithm, OnNodes):
        return algorithm
    shared = (len(list(run)) for row in rows(event, mesh) for _, run in groupby(row))
    return algorithm.placed(gcd(*shared))


def between(event: Event, algorithm: Algorithm, nodes: Sequence[int], sent: Sequence[int]) -> list[int]:
    """Bytes that each position sends to other nodes in one call, given all that each sends."""
    to = pattern(event, algorithm)
    if to == "next":
        shift = event.shift if event.wire_op == "send" else 1
        there = (*nodes[shift:], *nodes[:shift])
        return [amount * (a != b) for amount, a, b in zip(sent, nodes, there, strict=True)]
    if to == "switch":
        return [amount * (len(set(nodes)) > 1) for amount in sent]
    return _to_all(event, nodes, sent) if to == "all" else _along(to, nodes, sent)


def _to_all(event: Event, nodes: Sequence[int], sent: Sequence[int]) -> list[int]:
    here = Counter(nodes)
    if event.wire_op not in _TO_EACH_ITS_OWN:
        others = len(nodes) - 1
        return [
            amount * (len(nodes) - here[node]) // others for amount, node in zip(sent, nodes, strict=True)
        ]
    home = Counter[int]()
    for position, node in enumerate(nodes):
        home[node] += event.chunk(position)
    return [event.payload_bytes - home[node] for node in nodes]


def _along(edges: tuple[tuple[int, int, int], ...], nodes: Sequence[int], sent: Sequence[int]) -> list[int]:
    every, crossing = Counter[int](), Counter[int]()
    for source, target, weight in edges:
        every[source] += weight
        crossing[source] += weight * (nodes[source] != nodes[target])
    return [amount * crossing[at] // every[at] if every[at] else 0 for at, amount in enumerate(sent)]


def shared(crossing: Sequence[int], nodes: Sequence[int]) -> Fraction:
    """Bytes between nodes for each member of a node that shares out what leaves it: the most of any node.

    A ring leaves a node by one of its members. NCCL runs several, its channels, each of which leaves by another network
    adapter, so that all members of a node in the group do an equal part.
    """
    members, leaving = Counter(nodes), Counter[int]()
    for node, amount in zip(nodes, crossing, strict=True):
        if amount:
            leaving[node] += amount
    parts = {(amount, members[node]) for node, amount in leaving.items()}
    return max((Fraction(*part) for part in parts), default=Fraction(0))


def rounds(event: Event, algorithm: Algorithm) -> int:
    """Rounds of one call."""
    return _rounds(event, algorithm, event.group_size)


def inter_node_rounds(event: Event, algorithm: Algorithm, share: Fraction) -> int:
    """Rounds that wait for a message between nodes, where ``share`` of the bytes of a rank goes there.

    A chunk on a ring waits only for its own hops, and so does a rank that talks to one other after the next. An
    algorithm that knows nodes has rounds of either kind; any other waits for the slowest message of each round.
    """
    if isinstance(algorithm, OnNodes):
        inside, _ = algorithm.nodes(event.group_size)
        return rounds(event, algorithm) - (_rounds(event, algorithm, inside) if inside > 1 else 0)
    if pattern(event, algorithm) in ("next", "all"):
        return ceil(rounds(event, algorithm) * share)
    return rounds(event, algorithm) if share else 0


def _rounds(event: Event, algorithm: Algorithm, ranks: int) -> int:
    return int(value(algorithm.forms[event.wire_op].rounds, {n: ranks, S: event.payload_bytes}))


def pattern(event: Event, algorithm: Algorithm) -> Pattern:
    """To whom each position sends; the same for all buffers that divide into equal cells."""
    op, ranks, elements = event.wire_op, event.group_size, event.payload_bytes // event.item_bytes
    return _pattern(algorithm, op, ranks, None if algorithm.even(op, ranks, elements) else elements)


@lru_cache(maxsize=64)
def _pattern(algorithm: Algorithm, op: str, ranks: int, elements: int | None) -> Pattern:
    return algorithm.pattern(op, ranks, None if elements is None else algorithm.cells(op, ranks, elements))
