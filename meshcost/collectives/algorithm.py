"""What an algorithm is: a named way to move the bytes of an operation, with its cost as a closed form.

Conventions (those of nccl-tests): S is the whole logical buffer of one call, n the ranks of the group, two or more. S is
the tensor of an all-reduce, broadcast or reduce, the gathered output of an all-gather or gather, the input of a
reduce-scatter or scatter, one rank's whole input of an all-to-all, the message of a send; a barrier has none. Bytes on
the wire leave protocol headers out. Rank 0 is the root.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Literal, NamedTuple

from sympy import Expr, Integer, Rational, ceiling, floor

from meshcost.collectives.cells import Cells, chunk, cut_as, cut_evenly, cut_rows, promise
from meshcost.collectives.schedule import Message, Round, Steps
from meshcost.errors import MeshcostError, UnknownAlgorithm
from meshcost.formula import value
from meshcost.symbols import S, n

__all__ = [
    "NOTHING",
    "Algorithm",
    "Form",
    "Move",
    "Pattern",
    "all_but_smallest",
    "chunk",
    "largest_to_others",
]

#: To whom a rank sends: to the next rank, to all others, through a switch, or along a list of edges (source, target,
#: weight). A weight counts cells, or their elements where the cells are given.
Pattern = Literal["next", "all", "switch"] | tuple[tuple[int, int, int], ...]

NOTHING = Integer(0)


@dataclass(frozen=True, slots=True)
class Form:
    """Closed form of one operation: bytes sent and received by the busiest rank, by all ranks together, and rounds.

    ``added`` is the reduction work: bytes that the busiest rank adds to what it holds. Two forms are added where one
    operation follows the other and the same rank is the busiest in both.
    """

    sent: Expr
    received: Expr
    total: Expr
    rounds: Expr
    added: Expr = NOTHING

    def __add__(self, other: "Form") -> "Form":
        """One after the other."""
        return Form(
            self.sent + other.sent,
            self.received + other.received,
            self.total + other.total,
            self.rounds + other.rounds,
            self.added + other.added,
        )


class Move(NamedTuple):
    """A message as an algorithm says it: ``cells`` may be a range, and is taken around the ring of cells."""

    source: int
    target: int
    cells: Sequence[int]
    add: bool = False


class Algorithm(ABC):
    """One way to perform some operations, stated twice.

    ``forms`` and ``moved`` are closed: what the busiest rank, and what each rank moves. ``moves`` is the schedule. Laws
    hold the two against each other. ``least_bytes`` and ``least_rounds`` name the operations in which no algorithm can do
    better, for any number of ranks; with ``switch``, a switch adds and copies; with ``one_node``, that of a node, which
    reaches no other. In the operations of ``alike`` all ranks do the same, so that with equal cells one speaks for all.
    """

    name: str
    source: str
    switch: bool = False
    one_node: bool = False
    least_bytes: frozenset[str] = frozenset()
    least_rounds: frozenset[str] = frozenset()
    alike: frozenset[str] = frozenset()

    @property
    @abstractmethod
    def how(self) -> str:
        """What ranks do, in a sentence."""

    @property
    def ports(self) -> int | None:
        """The most messages that a rank sends, or receives, in one round; None for one with each peer."""
        return 1

    @property
    @abstractmethod
    def forms(self) -> Mapping[str, Form]:
        """The cost of each operation, where all cells have one size."""

    @abstractmethod
    def moved(self, op: str, at: int, ranks: int, cells: Cells) -> tuple[int, int]:
        """Elements (sent, received) of one position in the group, for a buffer cut in any way."""

    @abstractmethod
    def moves(self, op: str, ranks: int) -> Iterator[list[Move]]:
        """Yield the rounds of the schedule, for two ranks or more."""

    def splits(self, op: str) -> bool:
        """Whether the buffer travels in n chunks (and not whole)."""
        return op == "barrier" or _in_chunks(self.forms[op].sent)

    def cut(self, op: str, ranks: int) -> tuple[int, int]:
        """Into how many chunks the buffer is cut, and each chunk into how many pieces."""
        return (ranks if self.splits(op) else 1), 1

    def even(self, op: str, ranks: int, elements: int) -> bool:
        """Whether all cells of such a buffer have one size, so that the closed form holds as it stands."""
        chunks, pieces = self.cut(op, ranks)
        return op == "barrier" or elements % (chunks * pieces) == 0

    def cells(self, op: str, ranks: int, elements: int) -> Cells:
        """Cut a buffer as evenly as whole elements allow."""
        if op == "all_to_all":
            return cut_rows(ranks, elements=elements)
        return cut_evenly(*self.cut(op, ranks), elements=0 if op == "barrier" else elements)

    def units(self, op: str, ranks: int) -> Cells:
        """Cells of one element each."""
        return self.cells(op, ranks, ranks if op == "all_to_all" else prod(self.cut(op, ranks)))

    def position(self, op: str, at: int, ranks: int, elements: int) -> tuple[int, int]:
        """Elements (sent, received) of one position in the group, for a buffer of ``elements``."""
        if ranks == 1:
            return 0, 0
        return self.moved(op, at, ranks, self.cells(op, ranks, elements))

    def by_position(self, op: str, ranks: int, elements: int) -> list[tuple[int, int]]:
        """Elements (sent, received) of each position in the group."""
        return [self.position(op, at, ranks, elements) for at in range(ranks)]

    def wire(self, op: str, *, ranks: int, elements: int, item: int) -> tuple[Expr, Expr]:
        """Bytes (sent, received) of the busiest rank, exact also where ``elements`` do not divide into equal cells."""
        form = self.forms[op]
        if self.even(op, ranks, elements):
            return form.sent, form.received
        return self.uneven(op, ranks=ranks, elements=elements, item=item)

    def uneven(self, op: str, *, ranks: int, elements: int, item: int) -> tuple[Expr, Expr]:
        """Bytes (sent, received) of the busiest rank where cells differ by one item of ``item`` bytes.

        Where no closed form is known, it is that of equal cells and the difference that counting rank by rank finds.
        """
        form, positions = self.forms[op], self.by_position(op, ranks, elements)
        most = (max(side) * item for side in zip(*positions, strict=True))
        sent, received = (
            even + Rational(exact - value(even, {S: elements * item, n: ranks}))
            for even, exact in zip((form.sent, form.received), most, strict=True)
        )
        return sent, received

    def pattern(self, op: str, ranks: int, cells: Cells | None = None) -> Pattern:
        """To whom each position sends, and how much: the schedule, added up. Without ``cells``, each counts one."""
        edges = Counter[tuple[int, int]]()
        for messages in self.moves(op, ranks):
            for move in messages:
                edges[move.source, move.target] += len(move.cells) if cells is None else cells.of(move.cells)
        return tuple((*edge, weight) for edge, weight in edges.items() if weight)

    def steps(self, op: str, ranks: int, elements: int, cell_elements: Sequence[int] | None = None) -> Steps:
        """Return the schedule of an operation as data.

        The buffer is cut as evenly as whole elements allow, unless ``cell_elements`` gives the size of each cell. Raises
        UnknownAlgorithm if the operation is not performed, and MeshcostError if the sizes do not fit. (Those of an
        all-to-all may differ from rank to rank, so their sum is free.)
        """
        if op not in self.forms:
            raise UnknownAlgorithm(f"{self.name} does not perform {op}: choose from {', '.join(self.forms)}.")
        cells = self.cells(op, ranks, elements)
        sizes = cells.sizes() if cell_elements is None else cut_as(cell_elements).sizes()
        if len(sizes) != cells.count or (op != "all_to_all" and sum(sizes) != cells.total):
            raise MeshcostError(
                f"cell_elements: {op} over {ranks} ranks takes {cells.count} cells of {cells.total} elements together."
            )
        start, end = promise(op, ranks, cells.count)
        rounds = tuple(self._rounds(op, ranks, cells.count)) if ranks > 1 else ()
        return Steps(op, ranks, sizes, tuple(map(frozenset, start)), end, rounds, self.switch)

    def _rounds(self, op: str, ranks: int, count: int) -> Iterator[Round]:
        for messages in self.moves(op, ranks):
            yield tuple(
                Message(move.source, move.target, tuple(cell % count for cell in move.cells), move.add)
                for move in messages
            )


@cache
def _in_chunks(sent: Expr) -> bool:
    """Whether a form speaks of an n-th of the buffer; asked several times for each event of a bill."""
    return bool(sent.has(1 / n))


def all_but_smallest(item: int) -> Expr:
    """The buffer without its smallest chunk."""
    return S - item * floor(S / (n * item))


def largest_to_others(item: int) -> Expr:
    """The largest chunk, once for each other rank."""
    return (n - 1) * item * ceiling(S / (n * item))
