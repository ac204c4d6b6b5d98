"""Double binary tree: two trees, each for one half of the buffer, in which the leaves of one work in the other."""

from collections.abc import Iterator
from types import MappingProxyType

from sympy.functions.elementary.miscellaneous import Min

from meshcost.collectives.algorithm import Algorithm, Form, Move
from meshcost.collectives.cells import Cells
from meshcost.formula import log2_ceiling
from meshcost.symbols import S, n


class DoubleTree(Algorithm):
    """Double binary tree, with the two trees of NCCL; half of the buffer goes up and down each.

    The first tree alternates leaves and inner ranks: rank 0 is the root with one child, odd ranks are leaves, and a rank
    with lowest one-bit b hangs at distance b below a rank whose lowest one-bit is higher. The second is the first
    mirrored (i becomes n - 1 - i) where n is even, shifted by one rank where it is odd. So no rank has more than two
    children in all, and sends at most 2 S: nearly the least, in 2 lg n rounds. (NCCL also cuts each half into slices that
    follow each other, builds the trees between nodes only, and chains the ranks of a node.)

    >>> [upper(i, 6) for i in range(6)]
    [None, 2, 4, 2, 0, 4]
    """

    name = "double_tree"
    how = "Two binary trees, each for half of the buffer; who is a leaf in one passes on in the other."
    source = "NCCL src/graph/trees.cc; Sanders, Speck and Traff 2009, Two-tree algorithms"
    ports = 2
    forms = MappingProxyType(
        {
            "all_reduce": Form(
                sent=S * Min(4, n) / 2,
                received=S * Min(4, n) / 2,
                total=2 * S * (n - 1),
                rounds=2 * log2_ceiling(n),
                added=S * Min(2, n - 1) / 2,
            )
        }
    )

    def cut(self, op: str, ranks: int) -> tuple[int, int]:
        """One half for each tree."""
        return 2, 1

    def moved(self, op: str, at: int, ranks: int, cells: Cells) -> tuple[int, int]:
        """A half goes to and comes from each child and the parent, in each tree."""
        places = at, ranks - 1 - at if ranks % 2 == 0 else (at - 1) % ranks
        both = sum(cells[half] * (_children(place, ranks) + (place > 0)) for half, place in enumerate(places))
        return both, both

    def moves(self, op: str, ranks: int) -> Iterator[list[Move]]:
        """A rank sends up as soon as all below it have, and down as soon as it can."""
        up, down = _levels(ranks)
        for level in up:
            yield [
                Move(_nth(half, i, ranks), _nth(half, j, ranks), (half,), True)
                for half in (0, 1)
                for i, j in level
            ]
        for level in down:
            yield [
                Move(_nth(half, j, ranks), _nth(half, i, ranks), (half,)) for half in (0, 1) for i, j in level
            ]


def upper(at: int, ranks: int) -> int | None:
    """Return the parent of a rank in the first tree, None for the root."""
    if at == 0:
        return None
    low = at & -at
    above = at - low if at & 2 * low else at + low
    return above if above < ranks else at - low


def _children(at: int, ranks: int) -> int:
    """Children of a rank in the first tree: the root has one, an odd rank none, others one below and one above."""
    if at % 2:
        return 0
    return 1 + (0 < at < ranks - 1)


def _nth(half: int, at: int, ranks: int) -> int:
    """Rank that has this place in the tree of one half."""
    if half == 0:
        return at
    return ranks - 1 - at if ranks % 2 == 0 else (at + 1) % ranks


def _levels(ranks: int) -> tuple[list[list[tuple[int, int]]], list[list[tuple[int, int]]]]:
    """Edges (child, parent) by the round in which they carry something: on the way up, and on the way down."""
    parents = {i: parent for i in range(ranks) if (parent := upper(i, ranks)) is not None}
    depth, height = {0: 0}, dict.fromkeys(range(ranks), 0)
    for i in sorted(parents, key=lambda x: (-(x & -x), x)):
        depth[i] = depth[parents[i]] + 1
    for i in sorted(parents, key=lambda x: -depth[x]):
        height[parents[i]] = max(height[parents[i]], height[i] + 1)
    edges = parents.items()
    up = [[edge for edge in edges if height[edge[0]] == level] for level in range(height[0])]
    down = [
        [edge for edge in edges if depth[edge[0]] == level] for level in range(1, max(depth.values()) + 1)
    ]
    return up, down


DOUBLE_TREE = DoubleTree()
