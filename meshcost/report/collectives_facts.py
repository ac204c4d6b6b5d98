"""The facts of a teaching page, as plain data: what each algorithm costs, and everything else that a page shows."""

import re
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from math import prod
from typing import Any, NamedTuple

from sympy import Expr, Integer, Max, simplify
from sympy.core.function import Application

from meshcost.collectives import ALGORITHMS, DEFAULTS, Algorithm
from meshcost.collectives.gloo import FRAME_BYTES, HOW, SENT, turning_point
from meshcost.collectives.hierarchical import OnNodes
from meshcost.collectives.operations import (
    OPERATIONS,
    Operation,
    State,
    compose,
    operation,
    ring_difference,
)
from meshcost.collectives.optimality import Optimality, optimality
from meshcost.collectives.schedule import in_use
from meshcost.formula import MEANINGS, pretty
from meshcost.report.collectives_group import GROUP, Group, grouped
from meshcost.report.collectives_picture import plain
from meshcost.report.collectives_uses import TRAPS, USES
from meshcost.symbols import S, T, b_d, e, g, h, k, n

#: Numbers of ranks at which a page shows how an all-reduce grows.
GROWTH = (2, 4, 8, 64, 1024)
#: Operations whose ring is shown round by round, and between how many ranks at most.
RING_SHOWN, RING_RANKS = ("all_reduce", "reduce_scatter", "all_gather"), 4


class Share(NamedTuple):
    """What some ranks of a group send and receive, as multiples of the payload S."""

    ranks: tuple[int, ...]
    sent: Fraction
    received: Fraction


class Cost(NamedTuple):
    """What one algorithm costs: rounds, bytes of the busiest rank and of the whole group, bytes added.

    Formulas are in S, n and, for an algorithm that knows nodes, g ranks in each.
    ``inside`` and ``between`` are what a rank sends within its node and to others, where the algorithm states it;
    ``crossing`` is what all ranks of the group together send to other nodes, counted on the schedule, as a multiple of S,
    and None where a switch sends, too. ``shares`` are the ranks of the group that move alike. A message to one rank has
    neither. With ``one_node`` it is for ranks on one node only.
    """

    algorithm: str
    how: str
    rounds: Expr
    sent: Expr
    received: Expr
    inside: Expr | None
    between: Expr | None
    total: Expr
    added: Expr
    to_bound: Expr
    crossing: Fraction | None
    shares: tuple[Share, ...]
    source: str
    one_node: bool

    def busy_sender(self, group: Group) -> bool:
        """Whether the busiest rank sends at least as much as any receives."""
        return group.payloads(self.sent) >= group.payloads(self.received)

    def partly_crossing(self, group: Group) -> Fraction | None:
        """What crosses nodes, where that may be a part of what is sent; None where it is all or nothing, or not counted."""
        return self.crossing if self.total and 1 < group.per_node < group.ranks else None


@cache
def costs(op: Operation, group: Group = GROUP) -> tuple[Cost, ...]:
    """List the algorithms that perform an operation.

    >>> [(cost.algorithm, cost.sent) for cost in costs(operation("all_reduce"))][:2]
    [('ring', 2*S*(n - 1)/n), ('tree', S*log2_ceiling(n))]
    """
    able = (x for x in ALGORITHMS.values() if any(call in x.forms for call in op.calls))
    return tuple(_cost(op, algorithm, group) for algorithm in able)


def _cost(op: Operation, stated: Algorithm, group: Group) -> Cost:
    algorithm, all_forms, between = stated, stated.forms, None
    if isinstance(stated, OnNodes):
        algorithm = stated.placed(group.per_node)
        all_forms, between = stated.on_nodes(g), stated.between_nodes(g)
    forms = [all_forms[call] for call in op.calls]
    sent, received = Max(*(x.sent for x in forms)), Max(*(x.received for x in forms))
    ratio, is_message = Integer(1), len(op.calls) > 1
    if op.lower_bound:
        ratio = sent.xreplace({S: Integer(1)}) / op.lower_bound.xreplace({S: Integer(1)})
        ratio = ratio if ratio.has(Application) else simplify(ratio)  # slow, and no shorter
    return Cost(
        algorithm=stated.name,
        how=stated.how,
        rounds=forms[0].rounds,
        sent=sent,
        received=received,
        inside=None if between is None else simplify(sent - between),
        between=between,
        total=forms[0].total,
        added=forms[0].added,
        to_bound=ratio,
        crossing=None if algorithm.switch or is_message else _crossing(algorithm, op.name, group),
        shares=() if is_message else tuple(_shares(algorithm, op.name, group.ranks)),
        source=stated.source,
        one_node=stated.one_node,
    )


def _crossing(algorithm: Algorithm, op: str, group: Group) -> Fraction:
    elements = group.ranks * prod(algorithm.cut(op, group.ranks))
    steps = algorithm.steps(op, group.ranks, elements)
    crossing = (
        message
        for messages in steps.rounds
        for message in messages
        if message.source // group.per_node != message.target // group.per_node
    )
    return Fraction(
        sum(steps.cell_elements[cell] for message in crossing for cell in message.cells), elements
    )


def _shares(algorithm: Algorithm, op: str, ranks: int) -> Iterator[Share]:
    elements = ranks * prod(algorithm.cut(op, ranks))
    alike: dict[tuple[int, int], list[int]] = {}
    for at, moved in enumerate(algorithm.by_position(op, ranks, elements)):
        alike.setdefault(moved, []).append(at)
    for (sent, received), places in alike.items():
        yield Share(tuple(places), Fraction(sent, elements), Fraction(received, elements))


def ring_rounds(op: str, ranks: int) -> list[State]:
    """What a ring leaves in use on each rank, before its first round and after each, from its schedule.

    Between more than four ranks it is that of four, which goes on alike.

    >>> ring_rounds("reduce_scatter", 9)[-1] == operation("reduce_scatter").after(4)
    True
    """
    shown = min(ranks, RING_RANKS)
    return [
        tuple(
            tuple(frozenset((rank, c) for rank in held[c]) if c in held else None for c in range(shown))
            for held in state
        )
        for state in in_use(ALGORITHMS["ring"].steps(op, shown, shown))
    ]


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
    limit = Fraction(str(GROUP.for_many_ranks(sent)))
    return [*((str(x), Group(x, x).payloads(sent)) for x in GROWTH), ("oo", limit)]


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


def as_dict(op: str | None = None, ranks: int = 4, ranks_per_node: int | None = None) -> dict[str, Any]:
    """One operation, or all seven, as plain data; the errors are those of ``page``.

    >>> as_dict("all_gather", 2)["after"]
    ['A0 B1', 'A0 B1']
    """
    group = grouped(ranks, ranks_per_node)
    if op is None:
        pages = [as_dict(name, ranks, ranks_per_node) for name in OPERATIONS]
        return {**_size(group), "operations": pages}
    data = _plain_page(operation(op), group)
    used = {name for formula in _formulas(data) for name in _CALLED.findall(formula)}
    return data | {"functions": {name: what for name, what in MEANINGS.items() if name in used}}


#: A function in a formula.
_CALLED = re.compile(r"\w+(?=\()")


def _formulas(data: Any) -> Iterator[str]:
    """Every formula that a page has."""
    if isinstance(data, dict) and isinstance(data.get("formula"), str):
        yield data["formula"]
    for inside in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from _formulas(inside)


def _plain_page(found: Operation, group: Group) -> dict[str, Any]:
    ranks = group.ranks
    return {
        "name": found.name,
        "meaning": found.meaning,
        **_size(group),
        "before": plain(found.before(ranks)),
        "after": plain(found.after(ranks)),
        "logical": {
            "contributes": {"who": found.contributor, "bytes": pretty(found.contributes)},
            "ends_with": {"who": found.receiver, "bytes": pretty(found.ends_with)},
        },
        "lower_bound": {
            **_figure(found.lower_bound, group),
            "reason": found.bound_reason,
            "source": found.bound_source,
        },
        "default": DEFAULTS[found.calls[0]],
        "algorithms": {cost.algorithm: _plain_cost(cost, group) for cost in costs(found, group)},
        "gloo": {
            "how": HOW[found.name],
            "sent": _gloo_figure(SENT[found.calls[0]], group),
            "frame_bytes": FRAME_BYTES,
        },
        "optimality": [_plain_row(row) for row in optimality(ranks, found.calls[0], group.per_node)],
        "busbw_factor": _figure(found.busbw_factor, group),
        "uses": [use._asdict() for use in USES[found.name]],
        "traps": list(TRAPS[found.name]),
        "spelled": {"torch.distributed": found.torch, "nccl": found.nccl, "mpi": found.mpi},
        **_more(found, ranks),
    }


def _more(op: Operation, ranks: int) -> dict[str, Any]:
    if op.name == "all_to_all":
        return {"all_gather_over_all_to_all": pretty(gather_over_exchange())}
    if op.name not in RING_SHOWN:
        return {}
    ring = {"ring_rounds": [plain(state) for state in ring_rounds(op.name, ranks)]}
    if op.name != "all_reduce":
        return ring
    proof = identity(ranks)
    steps = {
        "steps": [plain(state) for state in proof.states],
        "equal": proof.equal,
        "difference": pretty(proof.difference),
    }
    return {**ring, "identity": steps, "growth": {at: str(amount) for at, amount in growth()}}


def _size(group: Group) -> dict[str, int]:
    return {"ranks": group.ranks, "ranks_per_node": group.per_node}


def _plain_cost(cost: Cost, group: Group) -> dict[str, Any]:
    figures = {
        key: _figure(amount, group) for key, amount in cost._asdict().items() if isinstance(amount, Expr)
    }
    by_rank = [
        {"ranks": list(share.ranks), "sent": str(share.sent), "received": str(share.received), "unit": "S"}
        for share in cost.shares
    ]
    crossing = None if cost.crossing is None else {"exact": str(cost.crossing), "unit": "S"}
    return {
        **figures,
        "how": cost.how,
        "all_between_nodes": crossing,
        "by_rank": by_rank,
        "one_node": cost.one_node,
        "source": cost.source,
    }


def _plain_row(row: Optimality) -> dict[str, Any]:
    return {key: str(x) if isinstance(x, Fraction) else x for key, x in row._asdict().items()}


def _gloo_figure(sent: Expr, group: Group) -> dict[str, Any]:
    """A figure, and up to how many bytes of S it is that multiple of S; None for any S."""
    turn = turning_point(sent)
    return {
        **_figure(sent if turn is None else turn[1], group),
        "formula": pretty(sent),
        "up_to_bytes": None if turn is None else int(group.payloads(turn[0])),
    }


def _figure(amount: Expr, group: Group) -> dict[str, Any]:
    many = group.for_many_ranks(amount)
    return {
        "formula": pretty(amount),
        "exact": str(group.payloads(amount)),
        "many_ranks": None if many is None else str(many),
        "unit": "S" if amount.has(S) else "1",
    }
