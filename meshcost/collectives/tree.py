"""Tree: a binomial tree, in which the ranks that have the data double in every round."""

from typing import ClassVar

from meshcost.collectives.algorithm import Algorithm, Form, Pattern
from meshcost.formula import log2_ceiling
from meshcost.symbols import S, n

_ROUNDS = log2_ceiling(n)


class Tree(Algorithm):
    """Binomial tree rooted at position 0; fewest rounds, but the root sends the whole buffer once in each.

    An all-reduce is a reduce to the root and a broadcast back.
    """

    name = "tree"
    source = "MPICH source comments, as in Thakur, Rabenseifner and Gropp 2005, section 4"
    forms: ClassVar = {
        "broadcast": Form(sent=_ROUNDS * S, received=S, total=S * (n - 1), rounds=_ROUNDS),
        "reduce": Form(sent=S, received=_ROUNDS * S, total=S * (n - 1), rounds=_ROUNDS),
        "all_reduce": Form(sent=_ROUNDS * S, received=_ROUNDS * S, total=2 * S * (n - 1), rounds=2 * _ROUNDS),
    }

    def position(self, op: str, at: int, ranks: int, elements: int) -> tuple[int, int]:
        """Count whole buffers to and from the children and the parent."""
        children = sum(
            1 for k in range(ranks.bit_length()) if at + 2**k < ranks and at & (2 ** (k + 1) - 1) == 0
        )
        parents = int(at > 0)
        down, up = (children, parents), (parents, children)
        sent, received = {"broadcast": down, "reduce": up, "all_reduce": (children + parents,) * 2}[op]
        return sent * elements, received * elements

    def pattern(self, op: str, ranks: int) -> Pattern:
        """Along the edges of the tree."""
        return self._edges(op, ranks)

    def _edges(self, op: str, ranks: int) -> tuple[tuple[int, int], ...]:
        down = tuple((i & (i - 1), i) for i in range(1, ranks))
        up = tuple((child, parent) for parent, child in down)
        return {"broadcast": down, "reduce": up, "all_reduce": up + down}[op]


TREE = Tree()
