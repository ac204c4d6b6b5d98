"""Hierarchical: an all-reduce in two levels, which spares the slow links between nodes."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Self, TypeVar

from sympy import Expr
from sympy.functions.elementary.miscellaneous import Min

from meshcost.collectives.algorithm import Algorithm, Form, Move, Pattern
from meshcost.collectives.cells import Cells
from meshcost.collectives.ring import RING
from meshcost.errors import MeshcostError
from meshcost.symbols import S, n

_OnNodes = TypeVar("_OnNodes", bound="OnNodes")


@dataclass(frozen=True)
class OnNodes(Algorithm):
    """An algorithm that knows nodes: ``ranks_per_node`` neighbours share one, or all of a smaller group.

    Its forms are written for any ranks per node, and stand on these.
    """

    ranks_per_node: int = 8

    @abstractmethod
    def on_nodes(self, inside: Expr) -> Mapping[str, Form]:
        """The cost of each operation on nodes of ``inside`` ranks."""

    @abstractmethod
    def between_nodes(self, inside: Expr) -> Expr:
        """Bytes of one call that each rank sends to other nodes."""

    @cached_property
    def forms(self) -> Mapping[str, Form]:
        """The cost of each operation on its own nodes."""
        return self.on_nodes(self.per_node)

    def placed(self, ranks_per_node: int) -> Self:
        """Return the same algorithm on other nodes."""
        return _placed(self, ranks_per_node)

    @property
    def per_node(self) -> Min:
        """Ranks of the group in one node."""
        return Min(self.ranks_per_node, n)

    def nodes(self, ranks: int) -> tuple[int, int]:
        """Return ranks per node and nodes; raises MeshcostError if the ranks do not fill their nodes.

        >>> HIERARCHICAL.nodes(16), HIERARCHICAL.nodes(4)
        ((8, 2), (4, 1))
        """
        inside = min(self.ranks_per_node, ranks)
        if ranks % inside:
            legal = ", ".join(str(x) for x in range(1, ranks + 1) if ranks % x == 0)
            raise MeshcostError(
                f"{self.name}: {ranks} ranks do not fill nodes of {inside}: choose ranks_per_node from {legal}."
            )
        return inside, ranks // inside


@dataclass(frozen=True)
class Hierarchical(OnNodes):
    """Two-level all-reduce: reduce-scatter inside, all-reduce between, all-gather inside; rings on both levels.

    With g ranks per node a rank sends 2 S (n - 1) / n, the least, as on one ring; but between nodes only 2 S (k - 1) / n
    for k = n / g nodes, all g ranks of a node at once, where a flat ring sends 2 S (n - 1) / n over one rank. And
    2 (g - 1) + 2 (k - 1) rounds, where it takes 2 (n - 1).

    >>> Hierarchical(ranks_per_node=4).forms["all_reduce"].rounds.subs({n: 8})
    8
    """

    name = "hierarchical"
    how = (
        "Rings on two levels: a reduce-scatter inside each node, an all-reduce between equal places of all "
        "nodes, an all-gather inside."
    )
    source = "Jia et al. 2018; stas00/ml-engineering, network/README.md"
    least_bytes = alike = frozenset({"all_reduce"})

    def on_nodes(self, inside: Expr) -> Mapping[str, Form]:
        """The bytes of a ring, the rounds of two short ones."""
        ring = RING.forms["all_reduce"]
        rounds = 2 * (inside - 1) + 2 * (n / inside - 1)
        return {"all_reduce": Form(ring.sent, ring.received, ring.total, rounds, ring.added)}

    def between_nodes(self, inside: Expr) -> Expr:
        """A ring over the nodes, on the share of one rank.

        >>> HIERARCHICAL.between_nodes(HIERARCHICAL.per_node).subs({n: 16, S: 8})
        1
        """
        return 2 * S * (n - inside) / (n * inside)

    def moved(self, op: str, at: int, ranks: int, cells: Cells) -> tuple[int, int]:
        """What both levels send and receive: a rank receives what the one before it on that level sends."""
        inside, _ = self.nodes(ranks)
        near, far = self.sent_by_level(at, ranks, cells)
        first = at - at % inside
        before, _ = self.sent_by_level(first + (at - 1) % inside, ranks, cells)
        _, behind = self.sent_by_level((at - inside) % ranks, ranks, cells)
        return near + far, before + behind

    def sent_by_level(self, at: int, ranks: int, cells: Cells) -> tuple[int, int]:
        """Elements sent inside the node, and to the next node.

        A turn on each level, twice: all shares but one of the buffer, and all cells but one of the own share.
        """
        inside, nodes = self.nodes(ranks)
        node, local = divmod(at, inside)
        own, after = (cells.turn((local + i) % inside * nodes, nodes) for i in (0, 1))
        mine, last = (cells[local * nodes + (node + i) % nodes] for i in (0, 1))
        return (cells.total - own) + (cells.total - after), (own - mine) + (own - last)

    def moves(self, op: str, ranks: int) -> Iterator[list[Move]]:
        """Rings inside all nodes, rings between equal places, rings inside again."""
        inside, nodes = self.nodes(ranks)
        for turn in ("reduce_scatter", "all_reduce", "all_gather"):
            between = turn == "all_reduce"
            for messages in RING.moves(turn, nodes if between else inside):
                yield [
                    _between(move, local, inside, nodes) if between else _inside(move, node, inside, nodes)
                    for local in range(inside if between else 1)
                    for node in range(1 if between else nodes)
                    for move in messages
                ]

    def pattern(self, op: str, ranks: int, cells: Cells | None = None) -> Pattern:
        """To the next rank of the node, and to the same place in the next node."""
        inside, _ = self.nodes(ranks)
        cut = cells or self.units(op, ranks)
        edges: list[tuple[int, int, int]] = []
        for at in range(ranks):
            near, far = self.sent_by_level(at, ranks, cut)
            edges += ((at, at - at % inside + (at + 1) % inside, near), (at, (at + inside) % ranks, far))
        return tuple(edge for edge in edges if edge[2])


@lru_cache(maxsize=64)
def _placed(algorithm: _OnNodes, ranks_per_node: int) -> _OnNodes:
    return replace(algorithm, ranks_per_node=ranks_per_node)


def _inside(move: Move, node: int, inside: int, nodes: int) -> Move:
    share = move.cells[0] % inside * nodes
    return Move(
        node * inside + move.source, node * inside + move.target, range(share, share + nodes), move.add
    )


def _between(move: Move, local: int, inside: int, nodes: int) -> Move:
    cell = local * nodes + move.cells[0] % nodes
    return Move(move.source * inside + local, move.target * inside + local, (cell,), move.add)


HIERARCHICAL = Hierarchical()
