"""How far each algorithm is from the least that any could do: a table, derived from the closed forms.

Bytes are compared for the busiest rank, the larger of what it sends and receives. The least holds as long as only ranks
add and copy: a switch may stay below it. Rounds are compared with the least for the ports that an algorithm uses: with
one port the ranks that know of something can only double (Chan et al. 2007), with a port for each peer one round is
enough, and a switch is two hops away from everybody.
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

from sympy import Expr, Integer
from sympy.functions.elementary.miscellaneous import Max

from meshcost.collectives import ALGORITHMS, Algorithm
from meshcost.collectives.hierarchical import OnNodes
from meshcost.collectives.operations import OPERATIONS, OTHERS
from meshcost.formula import log2_ceiling, value
from meshcost.symbols import S, n

#: The least bytes of the busiest rank.
LEAST_BYTES: Mapping[str, Expr] = MappingProxyType(
    {call: op.lower_bound for op in (*OPERATIONS.values(), *OTHERS.values()) for call in op.calls}
)


class Optimality(NamedTuple):
    """One algorithm for one operation: how many times the least bytes and rounds, and whether that is once for all n."""

    op: str
    algorithm: str
    bytes_ratio: Fraction
    rounds_ratio: Fraction
    least_bytes: bool
    least_rounds: bool


def least_rounds(algorithm: Algorithm) -> Expr:
    """Fewest rounds for the ports that an algorithm uses.

    >>> least_rounds(ALGORITHMS["ring"]), least_rounds(ALGORITHMS["direct"])
    (log2_ceiling(n), 1)
    """
    if algorithm.switch:
        return Integer(2)
    return log2_ceiling(n) if algorithm.one_port else Integer(1)


@cache
def optimality(ranks: int, op: str | None = None) -> tuple[Optimality, ...]:
    """List all algorithms of one operation or of all, at a number of ranks from 2 on.

    An algorithm that knows nodes stands on the largest ones, up to its own, that so many ranks fill.

    >>> [(row.algorithm, str(row.bytes_ratio), str(row.rounds_ratio)) for row in optimality(8, "broadcast")][:2]
    [('ring', '1', '7/3'), ('tree', '3', '1')]
    """
    return tuple(_rows(ranks, op))


def _rows(ranks: int, op: str | None) -> Iterator[Optimality]:
    for name, stated in ALGORITHMS.items():
        algorithm = fitted(stated, ranks)
        for each, form in algorithm.forms.items():
            if op in (None, each):
                most, least = (_at(x, ranks) for x in (Max(form.sent, form.received), LEAST_BYTES[each]))
                rounds, fewest = (_at(x, ranks) for x in (form.rounds, least_rounds(algorithm)))
                yield Optimality(
                    each,
                    name,
                    most / least if least else Fraction(1),
                    rounds / fewest,
                    each in algorithm.least_bytes,
                    each in algorithm.least_rounds,
                )


def fitted(algorithm: Algorithm, ranks: int) -> Algorithm:
    """The algorithm itself, or, if it knows nodes, on the largest ones that so many ranks fill.

    >>> fitted(ALGORITHMS["hierarchical"], 12) == ALGORITHMS["hierarchical"].placed(6)
    True
    """
    if not isinstance(algorithm, OnNodes):
        return algorithm
    return algorithm.placed(max(x for x in range(1, algorithm.ranks_per_node + 1) if ranks % x == 0))


def _at(amount: Expr, ranks: int) -> Fraction:
    return Fraction(value(amount, {S: 1, n: ranks}))
