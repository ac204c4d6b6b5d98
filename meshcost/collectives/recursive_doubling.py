"""Recursive doubling: in round k every rank exchanges all it has with the rank 2**k away."""

from collections.abc import Iterator
from types import MappingProxyType

from meshcost.collectives import fold
from meshcost.collectives.algorithm import NOTHING, Algorithm, Form, Move
from meshcost.collectives.cells import Cells
from meshcost.collectives.fold import BLOCKS, CORE, DOUBLINGS, FOLDED, LEFT
from meshcost.symbols import S, n

_ROUNDS = DOUBLINGS + 2 * FOLDED
_WHOLE = S * (DOUBLINGS + FOLDED)


class RecursiveDoubling(Algorithm):
    """Recursive doubling; fewest rounds where n is a power of two, two more otherwise (see ``fold``).

    An all-reduce exchanges whole buffers, so it is for small ones: lg n (alpha + S beta + S gamma). An all-gather
    exchanges twice as much in each round, in all no more than it must. A barrier is the all-gather without data. MPICH
    uses it for short messages.

    >>> for messages in RECURSIVE_DOUBLING.steps("all_gather", 3, 3).rounds:
    ...     print(*messages, sep="; ")
    1 -> 0, cells 1
    0 -> 2, cells 0 1; 2 -> 0, cells 2
    0 -> 1, cells 2 0
    """

    name = "recursive_doubling"
    how = (
        "In round k each rank exchanges all it has with the rank 2**k away. Those beyond a power of two "
        "hand in first and get the result last."
    )
    source = "MPICH source comments, as in Thakur, Rabenseifner and Gropp 2005, sections 4.1 and 4.5"
    least_bytes = alike = frozenset({"barrier"})
    forms = MappingProxyType(
        {
            "all_reduce": Form(_WHOLE, _WHOLE, S * (CORE * DOUBLINGS + 2 * LEFT), _ROUNDS, added=_WHOLE),
            "all_gather": Form(S / n * (BLOCKS + (n - 1) * FOLDED), S * (n - 1) / n, S * (n - 1), _ROUNDS),
            "barrier": Form(NOTHING, NOTHING, NOTHING, _ROUNDS),
        }
    )

    def moved(self, op: str, at: int, ranks: int, cells: Cells) -> tuple[int, int]:
        """A rank that is left over sends once and receives once; one that stands for two also serves the other."""
        number, two = fold.number_of(at, ranks), fold.stands_for_two(at, ranks)
        if op == "all_reduce":
            rounds = 1 if number is None else fold.core(ranks).bit_length() - 1 + two
            return rounds * cells.total, rounds * cells.total
        lacking = cells.total - cells[at]
        if number is None:
            return cells[at], lacking
        return fold.blocks(number, ranks, cells) + two * (cells.total - cells[at + 1]), lacking

    def moves(self, op: str, ranks: int) -> Iterator[list[Move]]:
        """Fold, double, unfold."""
        whole = op == "all_reduce"
        yield from fold.fold(ranks, (0,) if whole else None, add=whole)
        for k in range(fold.core(ranks).bit_length() - 1):
            yield [
                Move(
                    fold.rank_of(number, ranks),
                    fold.rank_of(partner, ranks),
                    (0,) if whole else fold.block(number, 2**k, ranks),
                    add=whole,
                )
                for number, partner in fold.partners(ranks, 2**k)
            ]
        left = fold.left_over(ranks)
        yield from fold.unfold([(i, (0,) if whole else range(i + 1, i + ranks)) for i in left])


RECURSIVE_DOUBLING = RecursiveDoubling()
