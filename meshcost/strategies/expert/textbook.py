"""Expert parallelism as the papers have it.

Calls    all_to_all to the experts (dispatch) and all_to_all back (combine), forward; the same two backward
         expert_tensor > 1 with sequence parallelism: all_gather before, reduce_scatter after the experts, each way
         expert_tensor = 1 beside tensor ranks that hold the same tokens: all_gather of the output, each way
Sends    4 T k h (e - 1) / e   elements per block with experts, rank and micro-batch, if routing is even
Assumes  each token has one home rank; the numbers of tokens are known; shared experts move nothing
         gradients travel to the experts in the dispatch dtype and back in the combine dtype
Source   Lepikhin et al. 2020, section 3.3; DeepSeek-AI 2024, sections 3.2.2 and 3.3.2
"""

from collections.abc import Iterator
from fractions import Fraction
from typing import Literal, NamedTuple

from sympy import Expr, Mul, ceiling

from meshcost import symbols as sym
from meshcost.event import Event
from meshcost.formula import value
from meshcost.strategies.expert.options import ExpertParallel
from meshcost.strategies.regions import Pass, expert_region, passes
from meshcost.strategies.view import Draft, Unit, View

#: Moments within the region of the experts.
_DISPATCH, _SPREAD, _COLLECT, _COMBINE, _RESTORE = 2, 3, 7, 8, 9


class Moment(NamedTuple):
    """Where experts are computed: the unit, the pass, and the number of the region."""

    unit: Unit
    step: Pass
    region: int

    def order(self, moment: int) -> tuple[int, ...]:
        """Place of a moment within this pass."""
        return self.step.order(self.region, moment)


def events(expert: ExpertParallel, view: View) -> Iterator[Event]:
    """Yield dispatch and combine of every block that has experts, wherever these live apart from other weights."""
    if not view.setting.experts_apart:
        return
    for unit in view.units:
        if unit.kind is not None and unit.kind.has_experts:
            for step in passes(view.setting):
                at = Moment(unit, step, expert_region(unit.kind))
                yield from _exchanges(expert, view, at)
                yield from _split_experts(expert, view, at)
                yield from _restore(view, at)


def _exchanges(expert: ExpertParallel, view: View, at: Moment) -> Iterator[Event]:
    backward = at.step.going == "backward"
    there = "the gradient of a token's output" if backward else "each token"
    back = "the gradient of its input" if backward else "what its experts made of it"
    first, last = (_COMBINE, _DISPATCH) if backward else (_DISPATCH, _COMBINE)
    dispatch = _to_all(expert, view, at, "dispatch", f"dispatch: send {there} to its experts")
    combine = _to_all(expert, view, at, "combine", f"combine: return to each token {back}")
    yield from view.call(dispatch, at.unit, order=at.order(first))
    yield from view.call(combine, at.unit, order=at.order(last))


def _to_all(
    expert: ExpertParallel, view: View, at: Moment, what: Literal["dispatch", "combine"], why: str
) -> Draft:
    width = sym.h * (sym.b_d if what == "dispatch" else sym.b_c)
    payload = _slots(expert, view) * _whole(view, width)
    dtype = view.setting.precision.dtype(what)
    return Draft("expert", "all_to_all", ("expert",), at.step.phase, payload, dtype, why + at.step.note)


def _whole(view: View, expression: Expr) -> Expr:
    """Round up what is sent whole: a token, or the bytes of one, where scales or an uneven share leave a fraction."""
    even = Fraction(value(expression, view.values_with_blocks)).denominator == 1
    return expression if even else ceiling(expression)


def _home_tokens(view: View) -> Expr:
    """Tokens that have their home on one rank: each token has one, unless tensor ranks split every expert among them."""
    setting = view.setting
    if setting.size("tensor") == 1:
        return sym.T
    shared = not setting.sequence_parallel and setting.expert_tensor == setting.size("tensor")
    return sym.T if shared else sym.T / sym.t


def _slots(expert: ExpertParallel, view: View) -> Expr:
    """Tokens that one rank sends: k copies of each, or as many as the capacity of all experts."""
    copies = sym.k * _home_tokens(view)
    slots = Mul(copies, *expert.routing)
    return _whole(view, slots) if expert.capacity_factor is None else sym.E * _whole(view, slots / sym.E)


def _split_experts(expert: ExpertParallel, view: View, at: Moment) -> Iterator[Event]:
    """Ranks that split one expert need all of its tokens, and add up what each of them made of them."""
    if not view.setting.sequence_parallel and view.setting.expert_tensor == view.setting.size("tensor"):
        return
    payload = view.axis("expert_tensor") * _slots(expert, view) * sym.h * sym.b_a
    spread, collect = (_SPREAD, _COLLECT) if at.step.going == "forward" else (_COLLECT, _SPREAD)
    axes, gradient = ("expert_tensor",), at.step.gradient
    gather = _draft(
        view, "all_gather", axes, payload, f"collect the {gradient}tokens of an expert split over ranks", at
    )
    scatter = _draft(
        view, "reduce_scatter", axes, payload, f"sum the {gradient}output of an expert split over ranks", at
    )
    yield from view.call(gather, at.unit, order=at.order(spread))
    yield from view.call(scatter, at.unit, order=at.order(collect))


def _restore(view: View, at: Moment) -> Iterator[Event]:
    """Tensor ranks that hold the same tokens dealt them out among themselves: they collect them again."""
    if view.setting.sequence_parallel or view.setting.expert_tensor > 1:
        return
    why = f"collect the {at.step.gradient}tokens that tensor ranks dealt out to experts"
    draft = _draft(view, "all_gather", ("tensor",), sym.T * sym.h * sym.b_a, why, at)
    forward = at.step.going == "forward"
    yield from view.call(draft, at.unit, order=at.order(_RESTORE if forward else 1))


def _draft(view: View, op: str, axes: tuple[str, ...], payload: Expr, why: str, at: Moment) -> Draft:
    dtype = view.setting.precision.dtype("activations")
    return Draft("expert", op, axes, at.step.phase, payload, dtype, why + at.step.note)
