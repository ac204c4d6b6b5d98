"""Ring: every rank talks to its next neighbour only, chunk by chunk, until each chunk has been everywhere."""

from collections.abc import Iterator
from types import MappingProxyType

from sympy import Expr, floor

from meshcost.collectives.algorithm import Algorithm, Form, Move, Pattern, all_but_smallest
from meshcost.collectives.cells import Cells
from meshcost.symbols import S, n

_GATHER = Form(sent=S * (n - 1) / n, received=S * (n - 1) / n, total=S * (n - 1), rounds=n - 1)
_SCATTER = Form(_GATHER.sent, _GATHER.received, _GATHER.total, _GATHER.rounds, added=_GATHER.received)
_CHAIN = Form(sent=S, received=S, total=S * (n - 1), rounds=n - 1)


class Ring(Algorithm):
    """Ring algorithms; the least bytes, n - 1 rounds. What NCCL, Gloo and MPICH use for large buffers.

    A reduce-scatter is one turn around the ring, an all-gather another, and an all-reduce is the two together:
    2 S (n - 1) / n, nearly independent of n. A broadcast is a chain that starts at the root, a reduce one that ends there.

    >>> for messages in RING.steps("all_gather", 3, 3).rounds:
    ...     print(*messages, sep="; ")
    0 -> 1, cells 0; 1 -> 2, cells 1; 2 -> 0, cells 2
    0 -> 1, cells 2; 1 -> 2, cells 0; 2 -> 0, cells 1
    """

    name = "ring"
    how = "Each rank takes from the rank before it and gives to the one after it, until all has been everywhere."
    source = "Patarasuk and Yuan 2009; MPICH source comments, as in Thakur, Rabenseifner and Gropp 2005"
    least_bytes = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"})
    alike = frozenset({"all_reduce", "all_gather", "reduce_scatter"})
    forms = MappingProxyType(
        {
            "all_reduce": _SCATTER + _GATHER,
            "all_gather": _GATHER,
            "reduce_scatter": _SCATTER,
            "broadcast": _CHAIN,
            "reduce": Form(_CHAIN.sent, _CHAIN.received, _CHAIN.total, _CHAIN.rounds, added=S),
        }
    )

    def moved(self, op: str, at: int, ranks: int, cells: Cells) -> tuple[int, int]:
        """Rank i owns chunk i; a turn sends every chunk but one and receives every chunk but one."""
        if op in ("broadcast", "reduce"):
            first, last = (0, ranks - 1) if op == "broadcast" else (1, 0)
            return cells.total * (at != last), cells.total * (at != first)
        before, own, after = (cells.total - cells[at + i] for i in (-1, 0, 1))
        scatter, gather = (own, before), (after, own)
        if op == "all_reduce":
            return scatter[0] + gather[0], scatter[1] + gather[1]
        return gather if op == "all_gather" else scatter

    def moves(self, op: str, ranks: int) -> Iterator[list[Move]]:
        """In each round everybody passes on what came last; chunk i starts so that it ends on rank i."""
        if op in ("broadcast", "reduce"):
            for source, target in _chain(op, ranks):
                yield [Move(source, target, (0,), add=op == "reduce")]
        for turn in ("reduce_scatter", "all_gather"):
            if op in (turn, "all_reduce"):
                add = turn == "reduce_scatter"
                for step in range(ranks - 1):
                    yield [Move(i, (i + 1) % ranks, (i - step - add,), add) for i in range(ranks)]

    def uneven(self, op: str, *, ranks: int, elements: int, item: int) -> tuple[Expr, Expr]:
        """All but the smallest chunk; in an all-reduce, twice the buffer without two neighbouring chunks."""
        most = all_but_smallest(item)
        if op == "all_reduce":
            most += S - item * floor((S + item) / (n * item))
        return most, most

    def pattern(self, op: str, ranks: int, cells: Cells | None = None) -> Pattern:
        """Around the ring; a chain leaves out one edge."""
        if op in ("broadcast", "reduce"):
            whole = 1 if cells is None else cells.total
            return tuple((source, target, whole) for source, target in _chain(op, ranks))
        return "next"


def _chain(op: str, ranks: int) -> list[tuple[int, int]]:
    first = 0 if op == "broadcast" else 1
    return [(i, (i + 1) % ranks) for i in range(first, first + ranks - 1)]


RING = Ring()
