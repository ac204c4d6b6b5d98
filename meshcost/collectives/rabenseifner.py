"""Rabenseifner: an all-reduce as recursive halving and recursive doubling, a reduce as halving and a gather."""

from collections.abc import Iterator
from types import MappingProxyType

from meshcost.collectives import fold
from meshcost.collectives.algorithm import Algorithm, Form, Move
from meshcost.collectives.cells import Cells
from meshcost.collectives.fold import CORE, DOUBLINGS, FOLDED, LEFT
from meshcost.collectives.tree import TREE
from meshcost.symbols import S

_HALVED = S * (CORE - 1) / CORE
_WHOLE = S * FOLDED


class Rabenseifner(Algorithm):
    """Rabenseifner's algorithm: few rounds and, for a power of two, the least bytes of an all-reduce.

    The q ranks that stay (see ``fold``) halve a buffer of q chunks until each has the sum of one. In an all-reduce they
    double back, and ranks left over, which have handed in their whole buffer, get the whole sum. In a reduce the chunks go
    up a binomial tree to rank 0. MPICH uses both for long messages.

    >>> [str(RABENSEIFNER.steps("all_reduce", 2, 2).rounds[i][0]) for i in (0, 1)]
    ['0 -> 1, cells 1, add', '0 -> 1, cells 0']
    """

    name = "rabenseifner"
    how = (
        "Recursive halving leaves each rank the sum of one part; recursive doubling, or a tree to the root, "
        "collects the parts."
    )
    source = (
        "Rabenseifner 2004; MPICH source comments, as in Thakur, Rabenseifner and Gropp 2005, section 4.5"
    )
    forms = MappingProxyType(
        {
            "all_reduce": Form(
                sent=2 * _HALVED + _WHOLE,
                received=2 * _HALVED + _WHOLE,
                total=2 * S * (CORE - 1) + 2 * S * LEFT,
                rounds=2 * DOUBLINGS + 2 * FOLDED,
                added=_HALVED + _WHOLE,
            ),
            "reduce": Form(
                sent=_HALVED + S / 2,
                received=2 * _HALVED + _WHOLE,
                total=S * (CORE - 1) + S * DOUBLINGS / 2 + S * LEFT,
                rounds=2 * DOUBLINGS + FOLDED,
                added=_HALVED + _WHOLE,
            ),
        }
    )

    def cut(self, op: str, ranks: int) -> tuple[int, int]:
        """One chunk for each rank that takes part in the halving."""
        return fold.core(ranks), 1

    def moved(self, op: str, at: int, ranks: int, cells: Cells) -> tuple[int, int]:
        """Halving sends what others keep and receives what the rank keeps; the rest is the way back, or up the tree."""
        number = fold.number_of(at, ranks)
        if number is None:
            return cells.total, cells.total * (op == "all_reduce")
        two = fold.stands_for_two(at, ranks) * cells.total
        given, kept = cells.total - cells[number], fold.blocks(number, cells.count, cells)
        if op == "all_reduce":
            return given + kept + two, kept + given + two
        passed, gathered = TREE.moved("gather", number, cells.count, cells)
        return given + passed, kept + gathered + two

    def moves(self, op: str, ranks: int) -> Iterator[list[Move]]:
        """Fold, halve, double, unfold; or fold, halve, gather."""
        cells, rounds = range(fold.core(ranks)), range(fold.core(ranks).bit_length() - 1)
        yield from fold.fold(ranks, cells, add=True)
        for k in reversed(rounds):
            yield _exchange(ranks, 2**k, halve=True)
        if op == "reduce":
            for messages in TREE.moves("gather", len(cells)):
                yield [
                    Move(fold.rank_of(x.source, ranks), fold.rank_of(x.target, ranks), x.cells)
                    for x in messages
                ]
            return
        for k in rounds:
            yield _exchange(ranks, 2**k, halve=False)
        yield from fold.unfold([(i, cells) for i in fold.left_over(ranks)])


def _exchange(ranks: int, size: int, *, halve: bool) -> list[Move]:
    """Give the partner its half to sum, or the own half of the sums."""
    return [
        Move(
            fold.rank_of(number, ranks),
            fold.rank_of(partner, ranks),
            fold.block(partner if halve else number, size, fold.core(ranks)),
            add=halve,
        )
        for number, partner in fold.partners(ranks, size)
    ]


RABENSEIFNER = Rabenseifner()
