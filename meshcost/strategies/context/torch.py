"""Context parallelism as PyTorch does it: its ring attention, which turns keys and values by all-to-all or gathers them.

Calls    rotate by all-to-all: all_to_all KV forward, c - 1 times; backward c - 1 times again, taking turns with
         all_to_all of dK and dV in fp32, c times
         rotate by all-gather: all_gather c KV forward and backward, then all_to_all of dK and dV in fp32, c times
Sends    2 T h   elements for each call of a ring, whatever c: each all_to_all goes to one rank as a whole
Assumes  keys and values are copied to as many heads as queries have, and padded to their size; load balance moves nothing
Source   torch.distributed.tensor.experimental._context_parallel (torch 2.13)
"""

from collections.abc import Iterator

from sympy import Expr

from meshcost import symbols as sym
from meshcost.event import Event
from meshcost.models import Attention
from meshcost.strategies.context import textbook
from meshcost.strategies.context.options import ContextParallel
from meshcost.strategies.regions import INSIDE, Pass, attention_region, passes
from meshcost.strategies.torch_layout import computed_in, core_gradients_from
from meshcost.strategies.view import Draft, Unit, View

_AXES = ("context",)


def events(context: ContextParallel, view: View) -> Iterator[Event]:
    """Yield the exchanges of every block that has attention. What torch does not have is as papers say."""
    attention = view.setting.model.attention
    if context.method == "ulysses" or attention is None:
        yield from textbook.events(context, view)
        return
    for unit in view.units:
        region = attention_region(unit.kind) if unit.kind is not None else None
        if region is not None:
            for step in passes(view.setting):
                yield from _around(context, view, unit, step, step.order(region, INSIDE))


def _around(
    context: ContextParallel, view: View, unit: Unit, step: Pass, order: tuple[int, ...]
) -> Iterator[Event]:
    asked = view.setting.torch.rotate_method or ("alltoall" if context.method == "ring" else "allgather")
    dtype, size = computed_in(view)
    width = _width(view, view.setting.model.attention)
    first = core_gradients_from(view, unit.kind) if step.going == "backward" and unit.kind else 0
    if asked == "alltoall":
        why = f"pass keys and values on around the ring{step.note}"
        keys = Draft("context", "all_to_all", _AXES, step.phase, sym.T * width * size, dtype, why, shift=1)
        yield from view.call(keys, unit, order=order, repeat=sym.c - 1, from_layer=first)
    else:
        why = f"collect the keys and values of the whole sequence{step.note}"
        keys = Draft("context", "all_gather", _AXES, step.phase, sym.c * sym.T * width * size, dtype, why)
        yield from view.call(keys, unit, order=order, from_layer=first)
    if step.going == "backward":
        why = "pass the gradients of keys and values on around the ring"
        gradients = Draft("context", "all_to_all", _AXES, step.phase, 4 * sym.T * width, "fp32", why, shift=1)
        place = order if asked == "alltoall" else (*order, 1)
        yield from view.call(gradients, unit, order=place, repeat=sym.c, from_layer=first)


def _width(view: View, attention: Attention | None) -> Expr:
    """Keys and values of one token on one rank, as wide as queries each."""
    assert attention is not None
    return 2 * attention.query / view.axis("tensor")
