"""NVLS: the switch inside a node adds and copies, so that a buffer crosses the link of a rank once each way."""

from collections.abc import Iterator
from types import MappingProxyType

from sympy import Integer

from meshcost.collectives.algorithm import Algorithm, Form, Move, Pattern
from meshcost.collectives.cells import Cells
from meshcost.symbols import S, n

_TWO = Integer(2)
_BOTH_WAYS = S * (n + 1) / n


class Nvls(Algorithm):
    """NVLink SHARP as NCCL uses it: rank i is the head of chunk i, and the switch works on its behalf.

    Reduce-scatter: the head asks for its chunk; the switch reads it from every rank, the head too, adds, and hands over the
    sum. All-gather: the head writes its chunk once, and the switch copies it to every rank, the head too. All-reduce: one
    after the other, S (n + 1) / n each way where a ring sends 2 S (n - 1) / n. Bytes are those on the links between ranks
    and switch; the total is what ranks send. A hop to or from the switch is a round.

    >>> NVLS.position("all_reduce", 0, 8, 8)
    (9, 9)
    """

    name = "nvls"
    how = (
        "The switch inside a node adds and copies: a rank takes the sum of its own chunk from it, or gives "
        "it a chunk once for all."
    )
    source = "NCCL src/device/all_reduce.h, NVLS on one node; Hopper multimem loads and stores (PTX ISA)"
    switch = True
    one_node = True
    forms = MappingProxyType(
        {
            "reduce_scatter": Form(sent=S, received=S / n, total=n * S, rounds=_TWO),
            "all_gather": Form(sent=S / n, received=S, total=S, rounds=_TWO),
            "all_reduce": Form(_BOTH_WAYS, _BOTH_WAYS, total=S * (n + 1), rounds=2 * _TWO),
        }
    )
    alike = frozenset(forms)
    least_rounds = frozenset({"reduce_scatter", "all_gather"})

    def splits(self, op: str) -> bool:
        """In n chunks, one for each head."""
        return True

    def moved(self, op: str, at: int, ranks: int, cells: Cells) -> tuple[int, int]:
        """All chunks in one direction, the own chunk in the other."""
        own, whole = cells[at], cells.total
        return {
            "reduce_scatter": (whole, own),
            "all_gather": (own, whole),
            "all_reduce": (whole + own, own + whole),
        }[op]

    def moves(self, op: str, ranks: int) -> Iterator[list[Move]]:
        """Up and down for the sum, up and down for its copies."""
        if op != "all_gather":
            yield [Move(i, ranks, range(ranks), add=True) for i in range(ranks)]
            yield [Move(ranks, i, (i,)) for i in range(ranks)]
        if op != "reduce_scatter":
            yield [Move(i, ranks, (i,)) for i in range(ranks)]
            yield [Move(ranks, i, range(ranks)) for i in range(ranks)]

    def pattern(self, op: str, ranks: int, cells: Cells | None = None) -> Pattern:
        """Through the switch."""
        return "switch"


NVLS = Nvls()
