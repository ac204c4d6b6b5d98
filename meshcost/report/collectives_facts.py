"""The facts of a teaching page, as plain data: what each algorithm costs, and everything else that a page shows."""

from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from math import prod
from typing import Any, NamedTuple

from sympy import Expr, Integer, Max, simplify
from sympy.core.function import Application

from meshcost.collectives import ALGORITHMS, DEFAULTS, Algorithm
from meshcost.collectives.gloo import FRAME_BYTES, HOW, SENT
from meshcost.collectives.operations import (
    OPERATIONS,
    Operation,
    State,
    compose,
    operation,
    ring_difference,
    ring_limit,
)
from meshcost.collectives.optimality import Optimality, fitted, optimality
from meshcost.errors import MeshcostError
from meshcost.formula import pretty, value
from meshcost.report.collectives_picture import plain
from meshcost.report.collectives_uses import TRAPS, USES
from meshcost.symbols import S, T, b_d, e, h, k, n

#: Numbers of ranks that a page can draw.
DRAWN = range(2, 17)
#: Numbers of ranks at which a page shows how an all-reduce grows.
GROWTH = (2, 4, 8, 64, 1024)


class Share(NamedTuple):
    """What some ranks of a group send and receive, as multiples of the payload S."""

    ranks: tuple[int, ...]
    sent: Fraction
    received: Fraction


class Cost(NamedTuple):
    """What one algorithm costs, in S and n: bytes of the busiest rank and of the whole group, rounds, bytes added.

    ``shares`` are the ranks that move alike, between as many ranks as are asked for; empty for a message to one rank.
    """

    algorithm: str
    rounds: Expr
    sent: Expr
    received: Expr
    total: Expr
    added: Expr
    to_bound: Expr
    shares: tuple[Share, ...]
    source: str

    def busy_sender(self, ranks: int) -> bool:
        """Whether the busiest rank sends at least as much as any receives."""
        return in_payloads(self.sent, ranks) >= in_payloads(self.received, ranks)


@cache
def costs(op: Operation, ranks: int = 4) -> tuple[Cost, ...]:
    """List the algorithms that perform an operation; one that knows nodes stands on those that so many ranks fill.

    >>> [(cost.algorithm, cost.sent) for cost in costs(operation("all_reduce"))][:2]
    [('ring', 2*S*(n - 1)/n), ('tree', S*log2_ceiling(n))]
    """
    found = []
    for name, stated in ALGORITHMS.items():
        algorithm = fitted(stated, ranks)
        forms = [algorithm.forms[call] for call in op.calls if call in algorithm.forms]
        if forms:
            sent, received = Max(*(x.sent for x in forms)), Max(*(x.received for x in forms))
            first, ratio = forms[0], Integer(1)
            if op.lower_bound:
                ratio = sent.xreplace({S: Integer(1)}) / op.lower_bound.xreplace({S: Integer(1)})
                ratio = ratio if ratio.has(Application) else simplify(ratio)  # slow, and no shorter
            shares = tuple(_shares(algorithm, op.name, ranks)) if len(op.calls) == 1 else ()
            found.append(
                Cost(
                    name,
                    first.rounds,
                    sent,
                    received,
                    first.total,
                    first.added,
                    ratio,
                    shares,
                    algorithm.source,
                )
            )
    return tuple(found)


def _shares(algorithm: Algorithm, op: str, ranks: int) -> Iterator[Share]:
    elements = ranks * prod(algorithm.cut(op, ranks))
    alike: dict[tuple[int, int], list[int]] = {}
    for at, moved in enumerate(algorithm.by_position(op, ranks, elements)):
        alike.setdefault(moved, []).append(at)
    for (sent, received), places in alike.items():
        yield Share(tuple(places), Fraction(sent, elements), Fraction(received, elements))


def in_payloads(amount: Expr, ranks: int) -> Fraction:
    """Bytes as a multiple of the payload S, exactly.

    >>> in_payloads(operation("all_reduce").lower_bound, 4)
    Fraction(3, 2)
    """
    return Fraction(value(amount, {S: 1, n: ranks}))


class Identity(NamedTuple):
    """An all-reduce as a reduce-scatter and an all-gather: the states on the way, what each sends, and the verdicts."""

    states: tuple[State, State, State]
    equal: bool
    sent: tuple[Expr, Expr, Expr]
    difference: Expr


def identity(ranks: int) -> Identity:
    """Put an all-gather after a reduce-scatter, and compare with an all-reduce, cell by cell and byte by byte.

    >>> identity(5).equal, identity(5).difference
    (True, 0)
    """
    whole, scatter, gather = (operation(x) for x in ("all_reduce", "reduce_scatter", "all_gather"))
    joined = compose(scatter, gather, ranks)
    sent = tuple(ALGORITHMS["ring"].forms[x.name].sent for x in (whole, scatter, gather))
    states = scatter.before(ranks), scatter.after(ranks), joined
    return Identity(states, joined == whole.after(ranks), sent, ring_difference())


def growth() -> list[tuple[str, Fraction]]:
    """What a rank sends in a ring all-reduce, as a multiple of S, by the number of ranks; ``oo`` is the limit.

    >>> growth()[-2:]
    [('1024', Fraction(1023, 512)), ('oo', Fraction(2, 1))]
    """
    sent = ALGORITHMS["ring"].forms["all_reduce"].sent
    return [*((str(x), in_payloads(sent, x)) for x in GROWTH), ("oo", in_payloads(ring_limit(), GROWTH[0]))]


def gather_over_exchange() -> Expr:
    """How many times the bytes of an expert dispatch are sent if all tokens go to all ranks instead.

    T tokens a rank, e ranks, k experts a token, spread evenly: an all-gather against an all-to-all.

    >>> gather_over_exchange()
    e/k
    """
    token = h * b_d
    gather, exchange = (
        ALGORITHMS[DEFAULTS[op]].forms[op].sent.xreplace({S: payload, n: e})
        for op, payload in (("all_gather", e * T * token), ("all_to_all", k * T * token))
    )
    return simplify(gather / exchange)


def as_dict(op: str | None = None, ranks: int = 4) -> dict[str, Any]:
    """One operation, or all seven, as plain data; the errors are those of ``page``.

    >>> as_dict("all_gather", 2)["after"]
    ['A0 B1', 'A0 B1']
    """
    drawn(ranks)
    if op is None:
        return {"ranks": ranks, "operations": [as_dict(name, ranks) for name in OPERATIONS]}
    found = operation(op)
    return {
        "name": found.name,
        "meaning": found.meaning,
        "ranks": ranks,
        "before": plain(found.before(ranks)),
        "after": plain(found.after(ranks)),
        "logical": {
            "contributes": {"who": found.contributor, "bytes": pretty(found.contributes)},
            "ends_with": {"who": found.receiver, "bytes": pretty(found.ends_with)},
        },
        "lower_bound": {
            **_figure(found.lower_bound, ranks),
            "reason": found.bound_reason,
            "source": found.bound_source,
        },
        "default": DEFAULTS[found.calls[0]],
        "algorithms": {cost.algorithm: _plain_cost(cost, ranks) for cost in costs(found, ranks)},
        "gloo": {
            "how": HOW[found.name],
            "sent": _figure(SENT[found.calls[0]], ranks),
            "frame_bytes": FRAME_BYTES,
        },
        "optimality": [_plain_row(row) for row in optimality(ranks, found.calls[0])],
        "busbw_factor": _figure(found.busbw_factor, ranks),
        "uses": [use._asdict() for use in USES[found.name]],
        "traps": list(TRAPS[found.name]),
        "spelled": {"torch.distributed": found.torch, "nccl": found.nccl, "mpi": found.mpi},
        **_more(found, ranks),
    }


def _more(op: Operation, ranks: int) -> dict[str, Any]:
    if op.name == "all_to_all":
        return {"all_gather_over_all_to_all": pretty(gather_over_exchange())}
    if op.name != "all_reduce":
        return {}
    proof = identity(ranks)
    steps = {
        "steps": [plain(state) for state in proof.states],
        "equal": proof.equal,
        "difference": pretty(proof.difference),
    }
    return {"identity": steps, "growth": {at: str(amount) for at, amount in growth()}}


def _plain_cost(cost: Cost, ranks: int) -> dict[str, Any]:
    named = cost._asdict()
    figures = {key: _figure(amount, ranks) for key, amount in named.items() if isinstance(amount, Expr)}
    by_rank = [
        {"ranks": list(share.ranks), "sent": str(share.sent), "received": str(share.received), "unit": "S"}
        for share in cost.shares
    ]
    return {**figures, "by_rank": by_rank, "source": cost.source}


def _plain_row(row: Optimality) -> dict[str, Any]:
    return {key: str(x) if isinstance(x, Fraction) else x for key, x in row._asdict().items()}


def _figure(amount: Expr, ranks: int) -> dict[str, Any]:
    exact = in_payloads(amount, ranks)
    return {"formula": pretty(amount), "exact": str(exact), "unit": "S" if amount.has(S) else "1"}


def drawn(ranks: int) -> int:
    """Return the number of ranks; raises MeshcostError if so many are not drawn."""
    if ranks not in DRAWN:
        raise MeshcostError(
            f"ranks: {ranks} cannot be drawn: choose a whole number from {DRAWN[0]} to {DRAWN[-1]}."
        )
    return ranks
