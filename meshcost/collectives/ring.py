"""Ring: every rank talks to its next neighbour only, chunk by chunk, until each chunk has been everywhere."""

from typing import ClassVar

from sympy import Expr, floor

from meshcost.collectives.algorithm import Algorithm, Form, Pattern, all_but_smallest, chunk
from meshcost.symbols import S, n

_TURN = Form(sent=S * (n - 1) / n, received=S * (n - 1) / n, total=S * (n - 1), rounds=n - 1)
_CHAIN = Form(sent=S, received=S, total=S * (n - 1), rounds=n - 1)


class Ring(Algorithm):
    """Ring algorithms; bandwidth-optimal, n - 1 rounds.

    A reduce-scatter is one turn around the ring, an all-gather another, and an all-reduce is the two together:
    2 S (n - 1) / n, nearly independent of n. A broadcast or reduce is a chain along the ring.
    """

    name = "ring"
    source = "Patarasuk and Yuan 2009; MPICH source comments, as in Thakur, Rabenseifner and Gropp 2005"
    forms: ClassVar = {
        "all_reduce": Form(2 * _TURN.sent, 2 * _TURN.received, 2 * _TURN.total, 2 * _TURN.rounds),
        "all_gather": _TURN,
        "reduce_scatter": _TURN,
        "broadcast": _CHAIN,
        "reduce": _CHAIN,
    }

    def position(self, op: str, at: int, ranks: int, elements: int) -> tuple[int, int]:
        """Rank i owns chunk i; a turn sends every chunk but one and receives every chunk but one."""
        if op in ("broadcast", "reduce"):
            return elements * (at < ranks - 1), elements * (at > 0)
        before, own, after = (elements - chunk(at + i, ranks, elements) for i in (-1, 0, 1))
        scatter, gather = (own, before), (after, own)
        if op == "all_reduce":
            return scatter[0] + gather[0], scatter[1] + gather[1]
        return gather if op == "all_gather" else scatter

    def uneven(self, op: str, item: int) -> tuple[Expr, Expr]:
        """All but the smallest chunk; in an all-reduce, twice the buffer without two neighbouring chunks."""
        most = all_but_smallest(item)
        if op == "all_reduce":
            most += S - item * floor((S + item) / (n * item))
        return most, most

    def pattern(self, op: str, ranks: int) -> Pattern:
        """Around the ring; a chain leaves out the last edge."""
        if op in ("broadcast", "reduce"):
            return tuple((i, i + 1) for i in range(ranks - 1))
        return "next"


RING = Ring()
