"""PAT: parallel aggregated trees, NCCL's all-gather and reduce-scatter of few rounds for any number of ranks."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from sympy import Integer, floor
from sympy.functions.elementary.miscellaneous import Min

from meshcost.collectives.algorithm import Algorithm, Form, Move, Pattern
from meshcost.collectives.cells import Cells, chunk, passing
from meshcost.formula import log2_ceiling, power2_floor
from meshcost.symbols import S, n

_LACKING = S * (n - 1) / n


@dataclass(frozen=True)
class Pat(Algorithm):
    """Parallel aggregated trees: each chunk has a binomial tree of its own, and chunks that take the same hop share it.

    The chunk of rank i reaches the rank s further back from the one s - low(s) back, where low(s) is the lowest one-bit
    of s: far hops come first and carry few chunks, near hops carry many. At most A chunks share a message: A is
    ``aggregation``, which stands for the size of NCCL's buffers, and doubles from 1 only while it is below n / 2, rounded
    down; 0 stands for chunks so small that n alone limits it. First the far hops are made that A chunks share, then the
    trees below are walked depth first, which needs few buffers: lg A + 2**log2_ceiling(n) / A - 1 rounds. A reduce-scatter
    is the way back. NCCL uses it where every node has one rank.

    >>> [[messages[0].target for messages in Pat(limit).steps("all_gather", 8, 8).rounds] for limit in (0, 1)]
    [[4, 6, 7], [4, 6, 7, 7, 6, 7, 7]]
    """

    aggregation: int = 0

    name = "pat"
    how = "Each chunk has a binomial tree of its own; chunks that take the same hop share a message."
    source = "NCCL src/include/collectives.h (PatAGAlgorithm, PatRSAlgorithm); Jeaugey 2025, arXiv 2506.20252"
    least_bytes = alike = frozenset({"all_gather", "reduce_scatter"})

    @cached_property
    def forms(self) -> dict[str, Form]:
        """The least bytes; rounds depend on how many chunks share a message."""
        shared = power2_floor(2 * floor(n / 2) - 1)
        if self.aggregation:
            shared = Min(power2_floor(Integer(self.aggregation)), shared)
        rounds = log2_ceiling(shared) + Min(n, power2_floor(2 * n - 1) / shared) - 1
        gather = Form(_LACKING, _LACKING, S * (n - 1), rounds)
        return {
            "all_gather": gather,
            "reduce_scatter": Form(gather.sent, gather.received, gather.total, rounds, added=_LACKING),
        }

    def shared(self, ranks: int) -> int:
        """Return the most chunks in one message.

        >>> [PAT.shared(ranks) for ranks in (2, 3, 5, 6, 8, 9)]
        [1, 1, 2, 4, 4, 4]
        """
        most = 1 << (ranks // 2 - 1).bit_length()
        return min(most, 1 << (self.aggregation.bit_length() - 1)) if self.aggregation else most

    def moved(self, op: str, at: int, ranks: int, cells: Cells) -> tuple[int, int]:
        """A chunk is received once, and passed on once per hop that starts here; the other way round in a reduce-scatter."""
        passed = sum(cells[at + far - (far & -far)] for far in range(1, ranks))
        lacking = cells.total - cells[at]
        return (passed, lacking) if op == "all_gather" else (lacking, passed)

    def by_position(self, op: str, ranks: int, elements: int) -> list[tuple[int, int]]:
        """Count the hops of each chunk once for all positions."""
        hops = [0] * ranks
        for far in range(1, ranks):
            hops[far - (far & -far)] += 1
        lacking = [elements - chunk(at, ranks, elements) for at in range(ranks)]
        sides = (passing(hops, elements), lacking)
        return list(zip(*(sides if op == "all_gather" else sides[::-1]), strict=True))

    def pattern(self, op: str, ranks: int, cells: Cells | None = None) -> Pattern:
        """The messages of a round carry the same places of the ring, counted from their sources: one sum serves all."""
        edges = Counter[tuple[int, int]]()
        for messages in self.moves(op, ranks):
            hops = [0] * ranks
            for cell in messages[0].cells:
                hops[cell % ranks] += 1
            sizes = passing(hops, ranks if cells is None else cells.total)
            for move in messages:
                edges[move.source, move.target] += sizes[move.source]
        return tuple((*edge, size) for edge, size in edges.items() if size)

    def moves(self, op: str, ranks: int) -> Iterator[list[Move]]:
        """Hops in order, or in some order back: from rank to rank - low, with the chunks that lie further on."""
        shared, whole = self.shared(ranks), 1 << (ranks - 1).bit_length()
        apart = whole // shared
        shared_hops = [(step, step, 2 * step) for step in _halves(whole) if step >= apart]
        if op == "all_gather":
            single = [(far, far & -far, apart) for far in _depth_first(apart) if far < ranks]
            for far, low, every in shared_hops + single:
                first = far - low
                yield [
                    Move(i, (i - low) % ranks, range(i + first, i + ranks - low, every)) for i in range(ranks)
                ]
        else:
            single = [(far, far & -far, apart) for far in range(apart - 1, 0, -1) if far < ranks]
            for far, low, every in single + shared_hops[::-1]:
                yield [
                    Move(i, (i + low) % ranks, range(i + far, i + ranks, every), add=True)
                    for i in range(ranks)
                ]


def _halves(whole: int) -> list[int]:
    """List the powers of two below ``whole``, from above."""
    return [whole >> k for k in range(1, whole.bit_length())]


def _depth_first(size: int) -> list[int]:
    """Order in which a tree of ``size`` is walked: far children first, each with its whole subtree.

    >>> _depth_first(8)
    [4, 6, 7, 5, 2, 3, 1]
    """
    return [x for half in _halves(size) for x in (half, *(half + y for y in _depth_first(half)))]


PAT = Pat()
