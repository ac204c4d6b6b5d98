"""Pairwise: in round k every rank exchanges with the rank k further on."""

from collections.abc import Iterator
from types import MappingProxyType

from sympy import Expr

from meshcost.collectives.algorithm import (
    Algorithm,
    Form,
    Move,
    Pattern,
    all_but_smallest,
    largest_to_others,
)
from meshcost.collectives.cells import Cells
from meshcost.symbols import S, n

_SENT = S * (n - 1) / n


class Pairwise(Algorithm):
    """Pairwise exchange; every rank sends each other rank the chunk that is meant for it: the least bytes, n - 1 rounds.

    What MPICH, Gloo and NCCL (as sends and receives) use for large all-to-alls.

    >>> print(*PAIRWISE.steps("all_to_all", 3, 3).rounds[1], sep="; ")
    0 -> 2, cells 2; 1 -> 0, cells 3; 2 -> 1, cells 7
    """

    name = "pairwise"
    how = "In round k each rank sends to the rank k further on, and takes from the one k back."
    source = "MPICH source comments, as in Thakur, Rabenseifner and Gropp 2005, section 4.4"
    least_bytes = alike = frozenset({"all_to_all", "reduce_scatter"})
    forms = MappingProxyType(
        {
            "all_to_all": Form(_SENT, _SENT, total=S * (n - 1), rounds=n - 1),
            "reduce_scatter": Form(_SENT, _SENT, total=S * (n - 1), rounds=n - 1, added=_SENT),
        }
    )

    def moved(self, op: str, at: int, ranks: int, cells: Cells) -> tuple[int, int]:
        """Rank i keeps chunk i of its own buffer; each other rank sends it its chunk i."""
        if op == "reduce_scatter":
            return cells.total - cells[at], cells[at] * (ranks - 1)
        row, column = (
            cells.span(at * ranks, (at + 1) * ranks),
            sum(cells[i * ranks + at] for i in range(ranks)),
        )
        own = cells[at * ranks + at]
        return row - own, column - own

    def moves(self, op: str, ranks: int) -> Iterator[list[Move]]:
        """Every rank sends one chunk of its own to the rank k further on."""
        exchange = op == "all_to_all"
        for step in range(1, ranks):
            pairs = [(i, (i + step) % ranks) for i in range(ranks)]
            yield [Move(i, j, (i * ranks * exchange + j,), add=not exchange) for i, j in pairs]

    def uneven(self, op: str, *, ranks: int, elements: int, item: int) -> tuple[Expr, Expr]:
        """The smallest chunk stays at home on one rank, the largest arrives from everybody on another."""
        return all_but_smallest(item), largest_to_others(item)

    def pattern(self, op: str, ranks: int, cells: Cells | None = None) -> Pattern:
        """To all others alike."""
        return "all"


PAIRWISE = Pairwise()
