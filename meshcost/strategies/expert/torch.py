"""Expert parallelism in plain PyTorch: experts dealt out over a group, tokens sent to them and back by all-to-all.

Calls    all_to_all of 8 B for each expert (how many tokens will come), all_to_all to the experts (dispatch) and all_to_all
         back (combine), forward; the last two backward
         expert_tensor > 1 with sequence parallelism: all_reduce of the gradient of all tokens over it, backward
Sends    4 T k h (e - 1) / e   elements per block with experts, rank and micro-batch, where experts divide T k
Assumes  every expert takes equally many tokens of a rank, rounded up; tokens travel in the data type they are computed in
Source   torch.distributed.all_to_all_single; torch.utils.checkpoint (torch 2.13)
"""

from collections.abc import Iterator
from dataclasses import replace

from sympy import Expr, Integer, Mul, ceiling

from meshcost import symbols as sym
from meshcost.event import Event
from meshcost.formula import value
from meshcost.strategies.expert.options import ExpertParallel
from meshcost.strategies.expert.textbook import Moment
from meshcost.strategies.regions import BACKWARD, expert_region, passes
from meshcost.strategies.torch_layout import computed_in, gradients_from, is_shared_expert, is_trained
from meshcost.strategies.view import Draft, Unit, View

_AXES = ("expert",)

#: Moments within the region of the experts.
_COUNTS, _DISPATCH, _COMBINE = 3, 4, 7


def events(expert: ExpertParallel, view: View) -> Iterator[Event]:
    """Yield dispatch and combine of every block that has experts, wherever these live apart from other weights."""
    if view.mesh.size(*_AXES) == 1:
        return
    for unit in view.units:
        if unit.kind is not None and unit.kind.has_experts:
            for step in passes(view.setting):
                at = Moment(unit, step, expert_region(unit.kind))
                yield from (_backward if step is BACKWARD else _forward)(expert, view, at)


def _forward(expert: ExpertParallel, view: View, at: Moment) -> Iterator[Event]:
    if view.setting.torch.exchange_counts:
        why = f"tell every rank how many tokens its experts get{at.step.note}"
        counts = Draft("expert", "all_to_all", _AXES, at.step.phase, 8 * sym.E, "int64", why)
        yield from view.call(counts, at.unit, order=at.order(_COUNTS))
    dispatch = _tokens(expert, view, at, "dispatch: send each token to its experts")
    yield from view.call(dispatch, at.unit, order=at.order(_DISPATCH))
    combine = _tokens(expert, view, at, "combine: return to each token what its experts made of it")
    yield from view.call(combine, at.unit, order=at.order(_COMBINE))


def _backward(expert: ExpertParallel, view: View, at: Moment) -> Iterator[Event]:
    """The gradient goes the same ways back, as far as anything needs it."""
    entry, leave = _gradients_from(view, at.unit)
    back = _tokens(expert, view, at, "dispatch: send the gradient of a token's output to its experts")
    yield from view.call(back, at.unit, order=at.order(_COMBINE), from_layer=leave)
    there = _tokens(expert, view, at, "combine: return to each token the gradient of its input")
    yield from view.call(there, at.unit, order=at.order(_DISPATCH), from_layer=entry)
    if view.setting.sequence_parallel:
        why = "sum the gradient of the tokens of an expert split over ranks"
        parts = replace(there, op="all_reduce", axes=("expert_tensor",), why=why)
        yield from view.call(parts, at.unit, order=(*at.order(_DISPATCH), 1), from_layer=entry)


def _gradients_from(view: View, unit: Unit) -> tuple[int, int]:
    """First blocks in which what experts take, and what they make, needs a gradient: scores weigh what they have made."""
    experts = [weight for weight in unit.held if weight.group == "expert"]
    before = [w for w in unit.held if w.group not in ("expert", "router") and not is_shared_expert(w)]
    entry = 0 if any(is_trained(view, weight) for weight in before) else gradients_from(view)
    return entry, 0 if any(is_trained(view, weight) for weight in experts) else entry


def _tokens(expert: ExpertParallel, view: View, at: Moment, why: str) -> Draft:
    dtype, size = computed_in(view)
    payload = _slots(expert, view) * sym.h * size
    return Draft("expert", "all_to_all", _AXES, at.step.phase, payload, dtype, why + at.step.note)


def _slots(expert: ExpertParallel, view: View) -> Expr:
    """Slots of all experts for the tokens of one rank; each expert has equally many."""
    tokens = sym.T / (view.axis("tensor") if view.setting.expert_tensor == 1 else Integer(1))
    each = Mul(*expert.routing) * tokens * sym.k / sym.E
    is_even = value(each, view.values_with_blocks).denominator == 1
    return each * sym.E if is_even else ceiling(each) * sym.E
