"""The group of a teaching page: so many ranks, on nodes of so many each."""

from fractions import Fraction
from typing import NamedTuple

from sympy import Expr, Integer

from meshcost.collectives.many_ranks import many_ranks
from meshcost.collectives.optimality import node_size
from meshcost.errors import MeshcostError
from meshcost.formula import value
from meshcost.symbols import S, g, n

#: Numbers of ranks that a page can draw.
DRAWN = range(2, 17)


class Group(NamedTuple):
    """Ranks on nodes of ``per_node`` neighbours each."""

    ranks: int = 4
    per_node: int = 2

    @property
    def nodes(self) -> int:
        """How many nodes they fill."""
        return self.ranks // self.per_node

    @property
    def sentence(self) -> str:
        """Name them.

        >>> Group(8, 4).sentence, Group(5, 1).sentence, Group(8, 8).sentence
        ('8 ranks on 2 nodes of 4', '5 ranks, each on a node of its own', '8 ranks on one node')
        """
        if self.per_node == 1:
            return f"{self.ranks} ranks, each on a node of its own"
        return f"{self.ranks} ranks on {f'{self.nodes} nodes of {self.per_node}' if self.nodes > 1 else 'one node'}"

    def payloads(self, amount: Expr) -> Fraction:
        """Bytes as a multiple of the payload S, exactly.

        >>> Group().payloads(2 * S * (n - 1) / n)
        Fraction(3, 2)
        """
        return Fraction(value(amount, {S: 1, n: self.ranks, g: self.per_node}))

    def for_many_ranks(self, amount: Expr) -> Expr | None:
        """The same for ever more nodes of this size; None where it has no limit.

        >>> Group().for_many_ranks(2 * S * (n - 1) / n)
        2
        """
        return many_ranks(amount.xreplace({S: Integer(1), g: Integer(self.per_node)}))


#: What is drawn unless somebody asks for more.
GROUP = Group()


def grouped(ranks: int = 4, ranks_per_node: int | None = None) -> Group:
    """Ranks on the nodes that are asked for, or on the largest of which they fill two.

    Raises MeshcostError if so many ranks are not drawn, or if they do not fill such nodes.

    >>> grouped(12), grouped(12, 3)
    (Group(ranks=12, per_node=6), Group(ranks=12, per_node=3))
    """
    if ranks not in DRAWN:
        raise MeshcostError(
            f"ranks: {ranks} cannot be drawn: choose a whole number from {DRAWN[0]} to {DRAWN[-1]}."
        )
    legal = [size for size in range(1, ranks + 1) if ranks % size == 0]
    if ranks_per_node is None:
        ranks_per_node = node_size(ranks)
    elif ranks_per_node not in legal:
        raise MeshcostError(
            f"ranks_per_node: {ranks} ranks do not fill nodes of {ranks_per_node}: choose from {', '.join(map(str, legal))}."
        )
    return Group(ranks, ranks_per_node)
