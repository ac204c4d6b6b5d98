"""Cells: how a buffer is cut, and what each rank of an operation has before and must have after, cell by cell."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from meshcost.errors import MeshcostError


def chunk(at: int, ranks: int, elements: int) -> int:
    """Elements of one chunk, where a buffer is split as evenly as whole elements allow, larger chunks first.

    >>> [chunk(at, 4, 10) for at in range(4)]
    [3, 3, 2, 2]
    """
    size, larger = divmod(elements, ranks)
    return size + (at % ranks < larger)


def before_chunk(at: int, ranks: int, elements: int) -> int:
    """Elements of the first ``at`` chunks of a buffer split that way.

    >>> [before_chunk(at, 4, 10) for at in range(5)]
    [0, 3, 6, 8, 10]
    """
    size, larger = divmod(elements, ranks)
    return at * size + min(at, larger)


def passing(hops: Sequence[int], elements: int) -> list[int]:
    """Elements that pass each rank where ``hops[far]`` messages carry the chunk of the rank ``far`` further on.

    The larger chunks are a stretch of the ring, so that one sum over the hops serves all ranks.

    >>> passing([1, 0, 2], elements=7)  # chunks of 3, 2 and 2 elements
    [7, 8, 6]
    """
    ranks = len(hops)
    size, larger = divmod(elements, ranks)
    upto, even = (0, *accumulate((*hops, *hops))), size * sum(hops)
    return [even + upto[-at % ranks + larger] - upto[-at % ranks] for at in range(ranks)]


@dataclass(frozen=True, slots=True)
class Cells:
    """A buffer in ``count`` cells; ``upto(k)`` are the elements of the first k. Nothing is stored per cell.

    >>> cells = cut_evenly(4, elements=10)
    >>> cells[1], cells.span(1, 3), cells.turn(3, 2), cells.total
    (3, 5, 5, 10)
    """

    count: int
    upto: Callable[[int], int]

    @property
    def total(self) -> int:
        """Elements of all cells."""
        return self.upto(self.count)

    def __getitem__(self, cell: int) -> int:
        """Elements of one cell; the number is taken around the ring of cells."""
        return self.span(cell % self.count, cell % self.count + 1)

    def span(self, first: int, last: int) -> int:
        """Elements of the cells from ``first`` to before ``last``."""
        return self.upto(last) - self.upto(first)

    def turn(self, first: int, number: int) -> int:
        """Elements of ``number`` cells from ``first`` on, around the ring of cells."""
        first, last = first % self.count, first % self.count + number
        past = max(0, last - self.count)
        return self.span(first, last - past) + self.upto(past)

    def of(self, cells: Sequence[int]) -> int:
        """Elements of some cells, their numbers taken around the ring; neighbours are not counted one by one.

        >>> cut_evenly(4, elements=10).of(range(3, 5)), cut_evenly(4, elements=10).of((0, 2))
        (5, 5)
        """
        if isinstance(cells, range) and cells.step == 1 and 0 < len(cells) <= self.count:
            return self.turn(cells.start, len(cells))
        return sum(self[cell] for cell in cells)

    def sizes(self) -> tuple[int, ...]:
        """Elements of each cell."""
        return tuple(self[cell] for cell in range(self.count))


def cut_evenly(chunks: int, pieces: int = 1, *, elements: int) -> Cells:
    """Cut a buffer into balanced chunks, and each chunk into balanced pieces.

    >>> cut_evenly(2, 2, elements=7).sizes()
    (2, 2, 2, 1)
    """

    def upto(cells: int) -> int:
        whole, rest = divmod(cells, pieces)
        inside = before_chunk(rest, pieces, chunk(whole, chunks, elements)) if rest else 0
        return before_chunk(whole, chunks, elements) + inside

    return Cells(chunks * pieces, upto)


def cut_rows(ranks: int, *, elements: int) -> Cells:
    """Cut the buffers of an all-to-all, one row for each rank."""
    return Cells(ranks * ranks, lambda k: k // ranks * elements + before_chunk(k % ranks, ranks, elements))


def cut_as(sizes: Sequence[int]) -> Cells:
    """Cut a buffer into cells of any sizes.

    >>> cut_as([5, 0, 2]).sizes()
    (5, 0, 2)
    """
    sums = (0, *accumulate(sizes))
    if min(sizes, default=0) < 0:
        raise MeshcostError(f"cell_elements: {min(sizes)} is negative.")
    return Cells(len(sizes), sums.__getitem__)


Holding = tuple[tuple[int, ...], ...]


def promise(op: str, ranks: int, count: int) -> tuple[Holding, Holding]:
    """Return the cells that each rank has at the start, and those it must have at the end.

    >>> promise("reduce_scatter", 2, 2)
    (((0, 1), (0, 1)), ((0,), (1,)))
    """
    each, everything, pieces = range(ranks), tuple(range(count)), count // ranks
    whole = (everything,) * ranks
    root = (everything, *((),) * (ranks - 1))
    own = tuple(everything[rank * pieces : (rank + 1) * pieces] for rank in each)
    match op:
        case "all_reduce":
            return whole, whole
        case "reduce":
            return whole, root
        case "broadcast":
            return root, whole
        case "reduce_scatter":
            return whole, own
        case "all_gather" | "barrier":
            return own, whole
        case "gather":
            return own, root
        case "scatter":
            return root, own
        case "all_to_all":
            return own, tuple(everything[rank::ranks] for rank in each)
        case _:
            return root, tuple(everything if rank == 1 else () for rank in each)
