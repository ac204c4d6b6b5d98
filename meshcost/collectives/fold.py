"""Folding: how algorithms that halve and double run on any number of ranks.

The largest power of two not above n is q. The r = n - q ranks left over are the odd ones of the first 2 r: each first
hands its data to its even neighbour, which stands for both, and at the end takes its result from there. The q ranks
that stay are numbered 0 to q - 1; number j stands for one rank or for two, and for the chunks of those. (MPICH folds so.)
"""

from collections.abc import Iterator, Sequence

from sympy.functions.elementary.miscellaneous import Max, Min

from meshcost.collectives.algorithm import Move
from meshcost.collectives.cells import Cells
from meshcost.formula import log2_ceiling, power2_floor
from meshcost.symbols import n

#: Ranks that stay, their rounds, the ranks left over, and whether there are any.
CORE = power2_floor(n)
DOUBLINGS = log2_ceiling(CORE)
LEFT = n - CORE
FOLDED = Min(1, LEFT)

# With r left over, min(2**k, r) of the first 2**k that stay stand for two ranks: here summed over all k < log2 q.
_SOME = Max(1, LEFT)
_DOUBLED = power2_floor(2 * _SOME - 1) - 1 + LEFT * (DOUBLINGS - log2_ceiling(_SOME))
#: Chunks in the blocks of 1, 2, 4, ... q / 2 that stay, counted from rank 0: the most that any rank meets.
BLOCKS = CORE - 1 + _DOUBLED


def core(ranks: int) -> int:
    """Ranks that stay.

    >>> core(5), core(8)
    (4, 8)
    """
    return 1 << (ranks.bit_length() - 1)


def rank_of(number: int, ranks: int) -> int:
    """Rank that has this number; also the first of its chunks.

    >>> [rank_of(j, 6) for j in range(4)]
    [0, 2, 4, 5]
    """
    return number + min(number, ranks - core(ranks))


def number_of(rank: int, ranks: int) -> int | None:
    """Return the number of a rank, or None if it is left over.

    >>> [number_of(i, 6) for i in range(6)]
    [0, None, 1, None, 2, 3]
    """
    left = ranks - core(ranks)
    if rank >= 2 * left:
        return rank - left
    return None if rank % 2 else rank // 2


def stands_for_two(rank: int, ranks: int) -> bool:
    """Whether a rank has a left-over neighbour to stand for."""
    return rank < 2 * (ranks - core(ranks)) and rank % 2 == 0


def fold(ranks: int, cells: Sequence[int] | None = None, *, add: bool) -> Iterator[list[Move]]:
    """Yield the first round, in which those left over hand in ``cells``, or their own; none if nobody is."""
    left = ranks - core(ranks)
    if left:
        yield [Move(i, i - 1, (i,) if cells is None else cells, add) for i in range(1, 2 * left, 2)]


def unfold(results: Sequence[tuple[int, Sequence[int]]]) -> Iterator[list[Move]]:
    """Yield the last round, in which those left over get their results, given as (rank, cells)."""
    if results:
        yield [Move(i - 1, i, cells) for i, cells in results]


def left_over(ranks: int) -> range:
    """List the ranks left over.

    >>> list(left_over(6))
    [1, 3]
    """
    return range(1, 2 * (ranks - core(ranks)), 2)


def block(number: int, size: int, ranks: int) -> range:
    """Chunks of all ``size`` numbers around this one that agree in their upper bits.

    >>> block(1, 2, 6), block(3, 2, 6)
    (range(0, 4), range(4, 6))
    """
    first = number // size * size
    return range(rank_of(first, ranks), first + size + min(first + size, ranks - core(ranks)))


def blocks(number: int, ranks: int, cells: Cells) -> int:
    """Elements of the blocks of 1, 2, 4, ... around a number."""
    sizes = (1 << k for k in range(core(ranks).bit_length() - 1))
    spans = (block(number, size, ranks) for size in sizes)
    return sum(cells.span(span.start, span.stop) for span in spans)


def partners(ranks: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield (number, number of the partner) at distance ``size``, for all that stay."""
    return ((number, number ^ size) for number in range(core(ranks)))
