"""SHARP: the switches between nodes add on the way up and copy on the way down."""

from collections.abc import Iterator
from types import MappingProxyType

from sympy import Integer

from meshcost.collectives.algorithm import NOTHING, Algorithm, Form, Move, Pattern
from meshcost.collectives.cells import Cells
from meshcost.symbols import S, n

_TWO = Integer(2)


class Sharp(Algorithm):
    """In-network reduction (SHARP): every rank sends its buffer up once, and receives the result once.

    S each way, where a ring sends 2 S (n - 1) / n; the tree of switches counts as one switch, two hops away. NCCL's
    CollNet uses it between nodes, one rank per node and rail. The root of a reduce or broadcast takes part as others do.

    >>> SHARP.position("all_reduce", 0, 8, 8)
    (8, 8)
    """

    name = "sharp"
    how = "The switches between nodes add on the way up and copy on the way down."
    source = "Graham et al. 2016, SHArP: a hardware architecture for data reduction; NCCL CollNet"
    switch = True
    least_bytes = frozenset({"barrier", "broadcast", "reduce"})
    forms = MappingProxyType(
        {
            "all_reduce": Form(S, S, total=n * S, rounds=_TWO),
            "reduce": Form(S, S, total=n * S, rounds=_TWO),
            "broadcast": Form(S, S, total=S, rounds=_TWO),
            "barrier": Form(NOTHING, NOTHING, NOTHING, _TWO),
        }
    )
    least_rounds = frozenset(forms)
    alike = frozenset({"all_reduce", "barrier"})

    def moved(self, op: str, at: int, ranks: int, cells: Cells) -> tuple[int, int]:
        """Once up, once down, for whoever gives or takes."""
        up, down = op != "broadcast" or at == 0, op != "reduce" or at == 0
        return cells.total * up, cells.total * down

    def moves(self, op: str, ranks: int) -> Iterator[list[Move]]:
        """Up, then down."""
        givers, takers = (1 if op == end else ranks for end in ("broadcast", "reduce"))
        own = op == "barrier"
        yield [Move(i, ranks, (i if own else 0,), add=op != "broadcast") for i in range(givers)]
        yield [Move(ranks, i, range(ranks) if own else (0,)) for i in range(takers)]

    def pattern(self, op: str, ranks: int, cells: Cells | None = None) -> Pattern:
        """Through the switch."""
        return "switch"


SHARP = Sharp()
