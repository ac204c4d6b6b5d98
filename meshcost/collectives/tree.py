"""Tree: a binomial tree, in which the ranks that have the data double in every round."""

from collections.abc import Iterator
from types import MappingProxyType

from sympy.functions.elementary.miscellaneous import Max

from meshcost.collectives.algorithm import NOTHING, Algorithm, Form, Move
from meshcost.collectives.cells import Cells
from meshcost.formula import log2_ceiling, ones_below, power2_floor
from meshcost.symbols import S, n

_ROUNDS = log2_ceiling(n)
_HALF = power2_floor(n - 1)
_LARGEST = S / n * Max(n - _HALF, _HALF / 2)
_ALL_HOPS = S / n * ones_below(n)
_OTHERS = S * (n - 1) / n

_DOWN = Form(sent=_ROUNDS * S, received=S, total=S * (n - 1), rounds=_ROUNDS)
_UP = Form(sent=S, received=_ROUNDS * S, total=S * (n - 1), rounds=_ROUNDS, added=_ROUNDS * S)


class Tree(Algorithm):
    """Binomial tree rooted at position 0; fewest rounds, but the root sends the whole buffer once in each.

    The parent of a rank is its number without the lowest one-bit: 7 -> 6 -> 4 -> 0. An all-reduce is a reduce to the
    root and a broadcast back, a barrier the same without data. In a gather or scatter a rank passes on the chunks of its
    whole subtree: the root moves no more than it must, each other chunk travels once per level. MPICH uses it for small
    buffers, Gloo for broadcasts.

    >>> for messages in TREE.steps("broadcast", 5, 1).rounds:
    ...     print(*messages, sep="; ")
    0 -> 4, cells 0
    0 -> 2, cells 0
    0 -> 1, cells 0; 2 -> 3, cells 0
    """

    name = "tree"
    how = "A binomial tree: the ranks that take part double in every round."
    source = "MPICH source comments, as in Thakur, Rabenseifner and Gropp 2005, section 4"
    least_bytes = frozenset({"gather", "scatter", "barrier"})
    least_rounds = frozenset({"broadcast", "reduce", "gather", "scatter"})
    alike = frozenset({"barrier"})
    forms = MappingProxyType(
        {
            "broadcast": _DOWN,
            "reduce": _UP,
            "all_reduce": Form(_UP.received, _UP.received, 2 * _UP.total, 2 * _ROUNDS, added=_UP.added),
            "gather": Form(_LARGEST, _OTHERS, _ALL_HOPS, _ROUNDS),
            "scatter": Form(_OTHERS, _LARGEST, _ALL_HOPS, _ROUNDS),
            "barrier": Form(NOTHING, NOTHING, NOTHING, 2 * _ROUNDS),
        }
    )

    def moved(self, op: str, at: int, ranks: int, cells: Cells) -> tuple[int, int]:
        """Count whole buffers to and from the children and the parent; or the chunks of the subtree."""
        if op in ("gather", "scatter"):
            end = min(at + (at & -at), ranks) if at else ranks
            own, below = cells.span(at, end) * (at > 0), cells.span(at + 1, end)
            return (own, below) if op == "gather" else (below, own)
        children = sum(
            1 for k in range(ranks.bit_length()) if at + 2**k < ranks and at & (2 ** (k + 1) - 1) == 0
        )
        parents = int(at > 0)
        down, up = (children, parents), (parents, children)
        sent, received = {"broadcast": down, "reduce": up}.get(op, (children + parents,) * 2)
        return sent * cells.total, received * cells.total

    def moves(self, op: str, ranks: int) -> Iterator[list[Move]]:
        """Go up the tree from the leaves, down from the root, or up and down; in round k along edges of length 2**k."""
        levels = [2**k for k in range((ranks - 1).bit_length())]
        chunks = op in ("gather", "scatter", "barrier")
        if op in ("reduce", "gather", "all_reduce", "barrier"):
            for step in levels:
                cells = {
                    i: range(i, min(i + step, ranks)) if chunks else (0,) for i in _children(step, ranks)
                }
                yield [Move(i, i - step, cells[i], add=not chunks) for i in cells]
        if op in ("broadcast", "scatter", "all_reduce", "barrier"):
            for step in reversed(levels):
                below = {
                    i: range(i, min(i + step, ranks)) if chunks else (0,) for i in _children(step, ranks)
                }
                if op == "barrier":
                    below = {i: range(i + len(below[i]), i + ranks) for i in below}
                yield [Move(i - step, i, below[i]) for i in below]


def _children(step: int, ranks: int) -> range:
    """Ranks whose lowest one-bit is ``step``: they talk to the rank that lacks it."""
    return range(step, ranks, 2 * step)


TREE = Tree()
