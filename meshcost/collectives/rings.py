"""Several rings at once: the buffer is shared out over rings that visit the ranks in different orders."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from math import gcd

from meshcost.collectives.algorithm import Algorithm, Form, Move, Pattern
from meshcost.collectives.cells import Cells
from meshcost.collectives.ring import RING

_OPS = ("all_reduce", "all_gather", "reduce_scatter")


@dataclass(frozen=True)
class Rings(Algorithm):
    """``channels`` rings side by side, each with its part of every chunk: the bytes and rounds of one ring.

    Ring c goes round in steps of s, where s is the c-th number without a common divisor with n (over again where there
    are fewer). Two rings with steps 1 and n - 1 are the bidirectional ring: both directions of each link carry half.
    NCCL opens channels in this way to use all links of a node; the bytes of a rank stay the same, its ports do not.

    >>> MULTI_RING.strides(8)
    (1, 3, 5, 7)
    """

    name: str
    channels: int
    bidirectional: bool = False

    source = "NCCL channels (src/graph); both directions: Jain and Sabharwal 2010, as in TPU tori"
    least_bytes = alike = frozenset(_OPS)

    @property
    def how(self) -> str:
        """In one sentence."""
        ways = "in opposite directions" if self.bidirectional else "that visit the ranks in different orders"
        return f"{self.channels} rings {ways} at the same time, each with its share of every chunk."

    @property
    def ports(self) -> int:
        """One for each ring."""
        return self.channels

    @cached_property
    def forms(self) -> dict[str, Form]:
        """Those of one ring: the rings share the bytes, and go round at the same time."""
        return {op: RING.forms[op] for op in _OPS}

    def strides(self, ranks: int) -> tuple[int, ...]:
        """How far each ring goes in one step."""
        if self.bidirectional:
            return tuple(ranks - 1 if channel % 2 else 1 for channel in range(self.channels))
        prime = list(islice((step for step in range(1, ranks) if gcd(step, ranks) == 1), self.channels))
        return tuple(prime[channel % len(prime)] for channel in range(self.channels))

    def cut(self, op: str, ranks: int) -> tuple[int, int]:
        """Each of n chunks in as many pieces as there are rings."""
        return ranks, self.channels

    def moved(self, op: str, at: int, ranks: int, cells: Cells) -> tuple[int, int]:
        """In each ring as in a ring, where neighbours are a stride away."""
        strides = enumerate(self.strides(ranks))
        places = [
            [(at + i * stride) % ranks * self.channels + channel for i in (-1, 0, 1)]
            for channel, stride in strides
        ]
        before, own, after = (cells.total - sum(cells[x[i]] for x in places) for i in range(3))
        sent = own * (op != "all_gather") + after * (op != "reduce_scatter")
        received = before * (op != "all_gather") + own * (op != "reduce_scatter")
        return sent, received

    def moves(self, op: str, ranks: int) -> Iterator[list[Move]]:
        """The rounds of a ring, in all rings at once, with ranks renamed by their place in each ring."""
        strides = self.strides(ranks)
        for messages in RING.moves(op, ranks):
            yield [
                Move(
                    move.source * stride % ranks,
                    move.target * stride % ranks,
                    [cell * stride % ranks * self.channels + channel for cell in move.cells],
                    move.add,
                )
                for channel, stride in enumerate(strides)
                for move in messages
            ]

    def pattern(self, op: str, ranks: int, cells: Cells | None = None) -> Pattern:
        """To the next rank of each ring; where two rings have one step, twice."""
        edges = Counter[tuple[int, int]]()
        for channel, stride in enumerate(self.strides(ranks)):
            own = [1 if cells is None else cells[i * self.channels + channel] for i in range(ranks)]
            scatter, gather, whole = op != "all_gather", op != "reduce_scatter", sum(own)
            for at in range(ranks):
                there = (at + stride) % ranks
                edges[at, there] += scatter * (whole - own[at]) + gather * (whole - own[there])
        return tuple((*edge, weight) for edge, weight in edges.items() if weight)


BIDIRECTIONAL_RING = Rings("bidirectional_ring", channels=2, bidirectional=True)
MULTI_RING = Rings("multi_ring", channels=4)
