"""Context parallelism as the papers have it; K and V are the keys and values of one rank's tokens.

Calls    ring        c - 1 send and recv of K V forward; c - 1 of K V and c - 1 of dK dV backward
         all_gather  all_gather K V forward; all_gather K V and reduce_scatter dK dV backward
         ulysses     all_to_all of Q, K, V and of the output, forward and backward
Sends    6 (c - 1) T h, 6 (c - 1) T h, 8 T h (c - 1) / c   elements per block, rank and micro-batch, if all heads have keys
Assumes  gathered or passed-on keys and values are not kept for the backward pass; masks save no bytes
Source   Liu et al. 2023; Grattafiori et al. 2024, section 3.3.2; Jacobs et al. 2023, section 3.2
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from sympy import Expr, Integer

from meshcost import symbols as sym
from meshcost.event import Event
from meshcost.models import Attention
from meshcost.strategies.context.options import ContextParallel
from meshcost.strategies.regions import INSIDE, Pass, attention_region, passes
from meshcost.strategies.view import Draft, Unit, View

_AXES = ("context",)


class Moment(NamedTuple):
    """Where one exchange happens: the unit, the pass, and its place in it."""

    unit: Unit
    step: Pass
    order: tuple[int, ...]

    def later(self, number: int) -> "Moment":
        """The same place, after ``number`` other exchanges."""
        return self._replace(order=(*self.order, number))


def events(context: ContextParallel, view: View) -> Iterator[Event]:
    """Yield the exchanges of every block that has attention."""
    attention = view.setting.model.attention
    if context.size == 1 or attention is None:
        return
    exchange = {"ring": _ring, "all_gather": _all_gather, "ulysses": _ulysses}[context.method]
    for unit in view.units:
        region = attention_region(unit.kind) if unit.kind is not None else None
        if region is not None:
            for step in passes(view.setting):
                moment = Moment(unit, step, step.order(region, INSIDE))
                yield from exchange(context, view, attention, moment)


def _ring(context: ContextParallel, view: View, attention: Attention, at: Moment) -> Iterator[Event]:
    payload = sym.T * _kv_width(view, attention) * sym.b_a
    yield from _hops(view, payload, at, "pass keys and values on around the ring")
    if at.step.going == "backward":
        yield from _hops(view, payload, at, "pass the gradients of keys and values on around the ring")


def _hops(view: View, payload: Expr, at: Moment, why: str) -> Iterator[Event]:
    """Send and receive take turns: what came last is what goes on next."""
    for op in ("send", "recv"):
        draft = replace(_draft(view, op, payload, at, why), shift=1)
        yield from view.call(draft, at.unit, order=at.order, repeat=sym.c - 1)


def _all_gather(context: ContextParallel, view: View, attention: Attention, at: Moment) -> Iterator[Event]:
    payload = sym.c * sym.T * _kv_width(view, attention) * sym.b_a
    collect = _draft(view, "all_gather", payload, at, "collect the keys and values of the whole sequence")
    yield from view.call(collect, at.unit, order=at.order)
    if at.step.going == "backward":
        scatter = _draft(view, "reduce_scatter", payload, at, "sum the gradients of keys and values")
        yield from view.call(scatter, at.unit, order=at.later(1).order)


def _ulysses(context: ContextParallel, view: View, attention: Attention, at: Moment) -> Iterator[Event]:
    tensor = view.axis("tensor")
    query, output = attention.query / tensor, attention.output / tensor
    key, value = _kv_widths(view, attention, context)
    moves = [(query, "queries"), (key, "keys"), (value, "values"), (output, "attention output")]
    for number, (width, what) in enumerate(moves if at.step.going == "forward" else reversed(moves)):
        why = f"trade sequence for heads: the {at.step.gradient}{what}"
        draft = _draft(view, "all_to_all", sym.T * width * sym.b_a, at, why)
        yield from view.call(draft, at.unit, order=at.later(number).order)


def _draft(view: View, op: str, payload: Expr, at: Moment, why: str) -> Draft:
    dtype = view.setting.precision.dtype("activations")
    return Draft("context", op, _AXES, at.step.phase, payload, dtype, why + at.step.note)


def _kv_width(view: View, attention: Attention) -> Expr:
    return (attention.key + attention.value) / _kv_split(view, attention)


def _kv_split(view: View, attention: Attention) -> Expr:
    """A single key and value head is whole on every tensor rank."""
    whole = view.setting.model.number(attention.kv_heads) == 1
    return Integer(1) if whole else view.axis("tensor")


def _kv_widths(view: View, attention: Attention, context: ContextParallel) -> tuple[Expr, Expr]:
    """Widths of keys and values on one rank, after copying heads where there are fewer heads than ranks."""
    split = _kv_split(view, attention)
    heads = max(view.setting.model.number(attention.kv_heads) // view.mesh.size("tensor"), 1)
    if context.replicate_kv_heads and heads % context.size:
        return sym.c * attention.key / attention.kv_heads, sym.c * attention.value / attention.kv_heads
    return attention.key / split, attention.value / split
