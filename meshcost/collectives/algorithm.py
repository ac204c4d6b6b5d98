"""What an algorithm is: a named way to move the bytes of an operation, with its cost as a closed form.

Conventions (those of nccl-tests): S is the whole logical buffer of one call, n the ranks of the group. S is the tensor
of an all-reduce, broadcast or reduce, the gathered output of an all-gather, the input of a reduce-scatter, one rank's
whole input of an all-to-all, the message of a send. Bytes on the wire leave protocol headers out.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from sympy import Expr, ceiling, floor

from meshcost.symbols import S, n

#: To whom a rank sends: to the next rank, to all others alike, or along a list of (from, to) edges, whole buffers.
Pattern = Literal["next", "all"] | tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Form:
    """Closed form of one operation: bytes sent and received by the busiest rank, by all ranks together, and rounds."""

    sent: Expr
    received: Expr
    total: Expr
    rounds: Expr


class Algorithm(ABC):
    """One way to perform some operations.

    ``forms`` states the cost where the buffer splits into n equal chunks; ``position`` counts elements rank by rank
    for any buffer, so that the two can be held against each other.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    forms: ClassVar[Mapping[str, Form]]

    @abstractmethod
    def position(self, op: str, at: int, ranks: int, elements: int) -> tuple[int, int]:
        """Elements (sent, received) of one position in the group, for a buffer of ``elements``."""

    def by_position(self, op: str, ranks: int, elements: int) -> list[tuple[int, int]]:
        """Elements (sent, received) of each position in the group."""
        return [self.position(op, at, ranks, elements) for at in range(ranks)]

    @abstractmethod
    def pattern(self, op: str, ranks: int) -> Pattern:
        """To whom each position sends."""

    def splits(self, op: str) -> bool:
        """Whether the buffer travels in n chunks (and not whole)."""
        return self.forms[op].sent.has(1 / n)

    def wire(self, op: str, *, even: bool, item: int) -> tuple[Expr, Expr]:
        """Bytes (sent, received) of the busiest rank, exact also where n chunks of whole items do not divide S."""
        form = self.forms[op]
        return (form.sent, form.received) if even or not self.splits(op) else self.uneven(op, item)

    def uneven(self, op: str, item: int) -> tuple[Expr, Expr]:
        """Bytes (sent, received) of the busiest rank where chunks differ by one item of ``item`` bytes."""
        most = all_but_smallest(item)
        return most, most


def all_but_smallest(item: int) -> Expr:
    """The buffer without its smallest chunk."""
    return S - item * floor(S / (n * item))


def largest_to_others(item: int) -> Expr:
    """The largest chunk, once for each other rank."""
    return (n - 1) * item * ceiling(S / (n * item))


def chunk(at: int, ranks: int, elements: int) -> int:
    """Elements of one chunk, where a buffer is split as evenly as whole elements allow, larger chunks first.

    >>> [chunk(at, 4, 10) for at in range(4)]
    [3, 3, 2, 2]
    """
    size, larger = divmod(elements, ranks)
    return size + (at % ranks < larger)
