"""How far each algorithm is from the least that any could do: a table, derived from the closed forms.

Bytes are compared for the busiest rank, the larger of what it sends and receives. The least holds as long as only ranks
add and copy: a switch may stay below it. Rounds are compared with the least for the ports that an algorithm uses: with
k ports those who know of something can at most tell k others each in a round, so they grow k + 1 times (Bruck et al. 1997;
with one port they double, Chan et al. 2007); with a port for each peer one round is enough, and a switch is two hops away
from everybody.
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

from sympy import Expr
from sympy.functions.elementary.miscellaneous import Max

from meshcost.collectives import ALGORITHMS, Algorithm
from meshcost.collectives.hierarchical import OnNodes
from meshcost.collectives.operations import OPERATIONS, OTHERS
from meshcost.formula import value
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


def least_rounds(algorithm: Algorithm, ranks: int) -> int:
    """Fewest rounds for the ports that an algorithm uses: the power of ports + 1 that reaches so many ranks.

    >>> [least_rounds(ALGORITHMS[name], 10) for name in ("ring", "bidirectional_ring", "multi_ring", "direct", "nvls")]
    [4, 3, 2, 1, 2]
    """
    if algorithm.switch:
        return 2
    grow, rounds, reached = (algorithm.ports or ranks) + 1, 0, 1
    while reached < ranks:
        rounds, reached = rounds + 1, reached * grow
    return rounds


@cache
def optimality(
    ranks: int, op: str | None = None, ranks_per_node: int | None = None
) -> tuple[Optimality, ...]:
    """List all algorithms of one operation or of all, at a number of ranks from 2 on.

    An algorithm that knows nodes stands on nodes of ``ranks_per_node``, which has to divide the ranks.

    >>> [(row.algorithm, str(row.bytes_ratio), str(row.rounds_ratio)) for row in optimality(8, "broadcast")][:2]
    [('ring', '1', '7/3'), ('tree', '3', '1')]
    """
    return tuple(_rows(ranks, op, ranks_per_node or node_size(ranks)))


def _rows(ranks: int, op: str | None, ranks_per_node: int) -> Iterator[Optimality]:
    for name, stated in ALGORITHMS.items():
        algorithm = stated.placed(ranks_per_node) if isinstance(stated, OnNodes) else stated
        for each, form in algorithm.forms.items():
            if op in (None, each):
                most, least = (_at(x, ranks) for x in (Max(form.sent, form.received), LEAST_BYTES[each]))
                rounds = _at(form.rounds, ranks)
                yield Optimality(
                    each,
                    name,
                    most / least if least else Fraction(1),
                    rounds / least_rounds(algorithm, ranks),
                    each in algorithm.least_bytes,
                    each in algorithm.least_rounds,
                )


def node_size(ranks: int) -> int:
    """Ranks of the largest nodes, of 8 at most, of which so many ranks fill two or more.

    >>> [node_size(ranks) for ranks in (1, 4, 12, 13, 64)]
    [1, 2, 6, 1, 8]
    """
    return max(x for x in range(1, 9) if ranks % x == 0 and x < max(ranks, 2))


def _at(amount: Expr, ranks: int) -> Fraction:
    return Fraction(value(amount, {S: 1, n: ranks}))
