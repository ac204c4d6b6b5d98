"""Bruck: every rank sends in one direction only, 2**k far in round k; any number of ranks, fewest rounds."""

from collections.abc import Iterator
from types import MappingProxyType

from meshcost.collectives.algorithm import NOTHING, Algorithm, Form, Move, Pattern
from meshcost.collectives.cells import Cells, passing
from meshcost.formula import log2_ceiling, ones_below
from meshcost.symbols import S, n

_ROUNDS = log2_ceiling(n)
_LACKING = S * (n - 1) / n
_HOPS = S / n * ones_below(n)


class Bruck(Algorithm):
    """Bruck's algorithms: log2_ceiling(n) rounds for any n.

    All-gather: rank i hands all it has, or all that is still lacking, 2**k ranks back. All-to-all: the chunk for the rank
    d further on travels along the one-bits of d, so on average half of the buffer is sent in every round: about
    (S / 2) lg n, for small messages. Barrier: the all-gather without data (dissemination).

    >>> for messages in BRUCK.steps("all_gather", 3, 3).rounds:
    ...     print(*messages, sep="; ")
    0 -> 2, cells 0; 1 -> 0, cells 1; 2 -> 1, cells 2
    0 -> 1, cells 0; 1 -> 2, cells 1; 2 -> 0, cells 2
    """

    name = "bruck"
    how = (
        "In round k each rank sends to the rank 2**k away whatever has that way to go; it does so for any n."
    )
    source = "Bruck, Ho, Kipnis, Upfal and Weathersby 1997; MPICH source comments"
    least_bytes = frozenset({"all_gather", "barrier"})
    forms = MappingProxyType(
        {
            "all_gather": Form(_LACKING, _LACKING, S * (n - 1), _ROUNDS),
            "all_to_all": Form(_HOPS, _HOPS, n * _HOPS, _ROUNDS),
            "barrier": Form(NOTHING, NOTHING, NOTHING, _ROUNDS),
        }
    )
    least_rounds = alike = frozenset(forms)

    def moved(self, op: str, at: int, ranks: int, cells: Cells) -> tuple[int, int]:
        """Count what passes through a rank, round by round."""
        if op != "all_to_all":
            sent = sum(cells.turn(at, min(step, ranks - step)) for step in _steps(ranks))
            return sent, cells.total - cells[at]
        sent = received = 0
        for step in _steps(ranks):
            for far in range(ranks):
                if far & step:
                    source, target = at - far % step, at - far % step + far
                    sent += cells[source % ranks * ranks + target % ranks]
                    received += cells[(source - step) % ranks * ranks + (target - step) % ranks]
        return sent, received

    def by_position(self, op: str, ranks: int, elements: int) -> list[tuple[int, int]]:
        """Add up the messages of an all-to-all once for all positions."""
        if op != "all_to_all":
            return super().by_position(op, ranks, elements)
        sent, received = [0] * ranks, [0] * ranks
        for source, target, size in _messages(ranks, elements):
            sent[source] += size
            received[target] += size
        return list(zip(sent, received, strict=True))

    def moves(self, op: str, ranks: int) -> Iterator[list[Move]]:
        """Gather from further on; or send forward whatever has this bit left to go."""
        for step in _steps(ranks):
            if op != "all_to_all":
                held = min(step, ranks - step)
                yield [Move(i, (i - step) % ranks, range(i, i + held)) for i in range(ranks)]
                continue
            far = [d for d in range(ranks) if d & step]
            yield [
                Move(i, (i + step) % ranks, [_cell(i - d % step, d, ranks) for d in far])
                for i in range(ranks)
            ]

    def pattern(self, op: str, ranks: int, cells: Cells | None = None) -> Pattern:
        """In an all-to-all, the rank 2**k further on gets the chunks of all distances with bit k."""
        if op != "all_to_all":
            return super().pattern(op, ranks, cells)
        return tuple(_messages(ranks, ranks if cells is None else cells.upto(ranks)))


def _messages(ranks: int, elements: int) -> Iterator[tuple[int, int, int]]:
    """Source, target and size of every message of an all-to-all in which each rank has so many elements."""
    for step in _steps(ranks):
        hops = [0] * ranks
        for far in range(ranks):
            hops[far - far % step] += bool(far & step)
        for i, size in enumerate(passing(hops, elements)):
            if size:
                yield i, (i + step) % ranks, size


def _steps(ranks: int) -> list[int]:
    return [2**k for k in range((ranks - 1).bit_length())]


def _cell(source: int, far: int, ranks: int) -> int:
    """Cell of an all-to-all that goes from a rank to the one ``far`` further on."""
    return source % ranks * ranks + (source + far) % ranks


BRUCK = Bruck()
