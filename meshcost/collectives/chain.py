"""Chain: a pipelined broadcast or reduce; the buffer goes from rank to rank in segments, one behind the other."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from sympy import Integer

from meshcost.collectives.algorithm import Algorithm, Form, Move, Pattern
from meshcost.collectives.cells import Cells
from meshcost.collectives.ring import RING
from meshcost.symbols import n


@dataclass(frozen=True)
class Chain(Algorithm):
    """Pipelined chain over ``segments`` equal parts of the buffer; the bytes of a ring, in n - 2 + segments rounds.

    Each round carries one segment, so the time is (n - 2 + k) (alpha + S beta / k): nearly S beta for many segments.
    NCCL broadcasts and reduces this way (its ring, cut into slices).

    >>> for messages in Chain(segments=2).steps("broadcast", 3, 2).rounds:
    ...     print(*messages, sep="; ")
    0 -> 1, cells 0
    0 -> 1, cells 1; 1 -> 2, cells 0
    1 -> 2, cells 1
    """

    segments: int = 8

    name = "chain"
    source = "NCCL src/device/broadcast.h and reduce.h, whose rings are cut into slices"
    least_bytes = frozenset({"broadcast", "reduce"})

    @property
    def how(self) -> str:
        """In one sentence."""
        return (
            f"The buffer goes from rank to rank in {self.segments} segments, one behind the other: the first arrives after "
            f"n - 1 rounds, the last {self.segments - 1} later."
        )

    @cached_property
    def forms(self) -> dict[str, Form]:
        """Bytes as in a chain of whole buffers; rounds overlap."""
        rounds = n - 2 + Integer(self.segments)
        whole = {op: RING.forms[op] for op in ("broadcast", "reduce")}
        return {op: Form(x.sent, x.received, x.total, rounds, x.added) for op, x in whole.items()}

    def cut(self, op: str, ranks: int) -> tuple[int, int]:
        """In segments."""
        return self.segments, 1

    def moved(self, op: str, at: int, ranks: int, cells: Cells) -> tuple[int, int]:
        """The whole buffer, but for the two ends."""
        return RING.moved(op, at, ranks, cells)

    def moves(self, op: str, ranks: int) -> Iterator[list[Move]]:
        """In round r segment s crosses the edge number r - s."""
        edges = [(move.source, move.target, move.add) for [move] in RING.moves(op, ranks)]
        for step in range(len(edges) + self.segments - 1):
            places = range(max(0, step - self.segments + 1), min(len(edges), step + 1))
            yield [Move(*edges[at][:2], (step - at,), edges[at][2]) for at in places]

    def pattern(self, op: str, ranks: int, cells: Cells | None = None) -> Pattern:
        """Along the chain."""
        return RING.pattern(op, ranks, cells)


CHAIN = Chain()
