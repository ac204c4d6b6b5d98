"""Scatter and all-gather: a broadcast of large buffers in two steps, after van de Geijn."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from meshcost.collectives.algorithm import Algorithm, Form, Move, Pattern
from meshcost.collectives.cells import Cells
from meshcost.collectives.recursive_doubling import RECURSIVE_DOUBLING
from meshcost.collectives.ring import RING
from meshcost.collectives.tree import TREE


@dataclass(frozen=True)
class ScatterAllGather(Algorithm):
    """Broadcast as a binomial scatter and an all-gather by ``gather``: 2 S (n - 1) / n at the root, where a tree has S lg n.

    As in MPICH, all ranks take part in the whole all-gather, also those that hold more than one chunk after the scatter:
    some chunks arrive twice. With a ring it is MPICH's way for long messages, with recursive doubling for medium ones.

    >>> [len(x.steps("broadcast", 8, 8).rounds) for x in (SCATTER_RING, SCATTER_DOUBLING)]
    [10, 6]
    """

    name: str
    gather: Algorithm

    source = "MPICH source comments, as in Thakur, Rabenseifner and Gropp 2005, section 4.2"

    @property
    def how(self) -> str:
        """In one sentence."""
        return f"A tree gives each rank a chunk, and an all-gather by {self.gather.name} brings all chunks to all."

    @cached_property
    def forms(self) -> dict[str, Form]:
        """The scatter and the all-gather; the root sends most in both."""
        return {"broadcast": TREE.forms["scatter"] + self.gather.forms["all_gather"]}

    def moved(self, op: str, at: int, ranks: int, cells: Cells) -> tuple[int, int]:
        """Both together."""
        first = TREE.moved("scatter", at, ranks, cells)
        second = self.gather.moved("all_gather", at, ranks, cells)
        return first[0] + second[0], first[1] + second[1]

    def moves(self, op: str, ranks: int) -> Iterator[list[Move]]:
        """One after the other."""
        yield from TREE.moves("scatter", ranks)
        yield from self.gather.moves("all_gather", ranks)

    def pattern(self, op: str, ranks: int, cells: Cells | None = None) -> Pattern:
        """Edges of the tree, and those of the all-gather."""
        edges = self.gather.pattern("all_gather", ranks, cells)
        if isinstance(edges, str):
            cut = cells or self.units(op, ranks)
            sent = (self.gather.moved("all_gather", i, ranks, cut)[0] for i in range(ranks))
            edges = tuple((i, (i + 1) % ranks, amount) for i, amount in enumerate(sent))
        tree = TREE.pattern("scatter", ranks, cells)
        return (*tree, *edges) if isinstance(tree, tuple) else tree


SCATTER_RING = ScatterAllGather("scatter_ring", RING)
SCATTER_DOUBLING = ScatterAllGather("scatter_doubling", RECURSIVE_DOUBLING)
