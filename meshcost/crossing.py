"""Crossing: which bytes of a call leave the node of the rank that sends them.

An algorithm says to whom each position of a group sends, the mesh on which nodes they sit: rank i is on node
i // gpus_per_node.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from math import gcd
from typing import NamedTuple

from meshcost.collectives import Algorithm, choose
from meshcost.collectives.algorithm import Pattern
from meshcost.collectives.hierarchical import OnNodes
from meshcost.event import Event
from meshcost.mesh import Mesh

#: Operations in which a rank that sends to all others sends each of them its own chunk of the buffer.
_TO_EACH_ITS_OWN = ("all_to_all", "reduce_scatter")


class Row(NamedTuple):
    """One way in which a group lies on nodes: the node of each position, and how many groups lie so."""

    nodes: tuple[int, ...]
    groups: int


def rows(event: Event, mesh: Mesh) -> Iterator[Row]:
    """Every way in which the groups that make this call lie on nodes."""
    for group, number in mesh.samples(event.axes, event.stages).items():
        nodes = tuple(rank // mesh.gpus_per_node for rank in group)
        if event.split:
            starts = range(0, len(nodes), event.split)
            yield from (Row(nodes[start : start + event.split], number) for start in starts)
        elif not event.pairs:
            yield Row(nodes, number)
        for pair in event.pairs:
            yield Row(tuple(nodes[stage] for stage in pair), number)


def placed(event: Event, mesh: Mesh, name: str | None) -> Algorithm:
    """The algorithm of a name; one that knows nodes is told how many neighbours in the group share one."""
    algorithm = choose(event.op, name)
    if not isinstance(algorithm, OnNodes):
        return algorithm
    shared = (len(list(run)) for row in rows(event, mesh) for _, run in groupby(row.nodes))
    return algorithm.placed(gcd(*shared))


def between(event: Event, algorithm: Algorithm, nodes: Sequence[int], sent: Sequence[int]) -> list[int]:
    """Bytes that each position sends to other nodes in one call, given all that each sends."""
    to = pattern(event, algorithm)
    if to == "next":
        shift = event.shift if event.op == "send" else 1
        there = (*nodes[shift:], *nodes[:shift])
        return [amount * (a != b) for amount, a, b in zip(sent, nodes, there, strict=True)]
    if to == "switch":
        return [amount * (len(set(nodes)) > 1) for amount in sent]
    return _to_all(event, nodes, sent) if to == "all" else _along(to, nodes, sent)


def _to_all(event: Event, nodes: Sequence[int], sent: Sequence[int]) -> list[int]:
    here = Counter(nodes)
    if event.op not in _TO_EACH_ITS_OWN:
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


def pattern(event: Event, algorithm: Algorithm) -> Pattern:
    """To whom each position sends; the same for all buffers that divide into equal cells."""
    op, ranks, elements = event.op, event.group_size, event.payload_bytes // event.item_bytes
    return _pattern(algorithm, op, ranks, None if algorithm.even(op, ranks, elements) else elements)


@lru_cache(maxsize=64)
def _pattern(algorithm: Algorithm, op: str, ranks: int, elements: int | None) -> Pattern:
    return algorithm.pattern(op, ranks, None if elements is None else algorithm.cells(op, ranks, elements))
