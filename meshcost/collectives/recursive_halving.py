"""Recursive halving: in each round every rank gives half of what it still sums to its partner in the other half."""

from collections.abc import Iterator
from types import MappingProxyType

from meshcost.collectives import fold
from meshcost.collectives.algorithm import Algorithm, Form, Move
from meshcost.collectives.cells import Cells
from meshcost.collectives.fold import BLOCKS, DOUBLINGS, FOLDED, LEFT
from meshcost.symbols import S, n

_RECEIVED = S * FOLDED + S / n * BLOCKS


class RecursiveHalving(Algorithm):
    """Recursive halving of a reduce-scatter, the mirror image of recursive doubling of an all-gather.

    Partners are half the group apart first, so the largest messages go farthest. The least bytes and rounds where n is
    a power of two; otherwise (see ``fold``) a rank left over sends its whole buffer first, and two rounds are added.
    MPICH uses it for short and commutative reduce-scatters.

    >>> for messages in RECURSIVE_HALVING.steps("reduce_scatter", 4, 4).rounds:
    ...     print(*messages, sep="; ")
    0 -> 2, cells 2 3, add; 1 -> 3, cells 2 3, add; 2 -> 0, cells 0 1, add; 3 -> 1, cells 0 1, add
    0 -> 1, cells 1, add; 1 -> 0, cells 0, add; 2 -> 3, cells 3, add; 3 -> 2, cells 2, add
    """

    name = "recursive_halving"
    how = (
        "In each round a rank gives a partner half of what it still sums, and keeps the other half. Those "
        "beyond a power of two hand in first and get the result last."
    )
    source = "MPICH source comments, as in Thakur, Rabenseifner and Gropp 2005, section 4.4"
    forms = MappingProxyType(
        {
            "reduce_scatter": Form(
                sent=S * (n - 1) / n + S / n * FOLDED,
                received=_RECEIVED,
                total=S * (n - 1) + S / n * LEFT,
                rounds=DOUBLINGS + 2 * FOLDED,
                added=_RECEIVED,
            )
        }
    )

    def moved(self, op: str, at: int, ranks: int, cells: Cells) -> tuple[int, int]:
        """A rank sends what others keep, and receives what it keeps, once in each round."""
        number, two = fold.number_of(at, ranks), fold.stands_for_two(at, ranks)
        if number is None:
            return cells.total, cells[at]
        kept = cells[at] + two * cells[at + 1]
        return cells.total - kept + two * cells[at + 1], fold.blocks(number, ranks, cells) + two * cells.total

    def moves(self, op: str, ranks: int) -> Iterator[list[Move]]:
        """Fold, halve, unfold."""
        yield from fold.fold(ranks, range(ranks), add=True)
        for k in reversed(range(fold.core(ranks).bit_length() - 1)):
            yield [
                Move(
                    fold.rank_of(number, ranks),
                    fold.rank_of(partner, ranks),
                    fold.block(partner, 2**k, ranks),
                    add=True,
                )
                for number, partner in fold.partners(ranks, 2**k)
            ]
        yield from fold.unfold([(i, (i,)) for i in fold.left_over(ranks)])


RECURSIVE_HALVING = RecursiveHalving()
