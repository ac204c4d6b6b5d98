"""Small calls as the papers have them.

Calls    all_reduce of 4 B over all ranks that hold different weights or gradients (the squared norm), once a step
         all_reduce of 4 B over all ranks that saw different tokens (the mean loss), on the last stage, once a step
         dualpipe: and one more over the two ranks that hold the last stage
Assumes  one number, summed over one group; whole weights are counted by one tensor rank
Source   Pascanu et al. 2013 (clipping by the global norm)
"""

from collections.abc import Iterator
from dataclasses import replace

from sympy import Integer

from meshcost.event import Event, Phase, Site
from meshcost.program import BEGIN, REPORT
from meshcost.strategies.scalars.options import Reported, Scalars
from meshcost.strategies.view import Draft, Stage, View
from meshcost.units import DTYPE_BYTES

_FP32_BYTES = Integer(4)


def events(scalars: Scalars, view: View) -> Iterator[Event]:
    """Yield the norm and the loss."""
    everywhere = Stage(tuple(range(view.mesh.stages)), (), view.values)
    yield from reported(scalars, view)
    if scalars.loss:
        yield from loss(view)
    if scalars.gradient_norm:
        sharded = view.setting.parallel["data"].strategy != "ddp"
        dense = ("data", "context") if sharded else ()
        yield from _norm(view, everywhere, ("tensor", *dense, "pipeline"), "the gradient norm")
        if view.setting.experts_apart and any(kind.has_experts for kind in view.setting.model.kinds):
            experts = ("expert_data",) if sharded else ()
            axes = ("expert_tensor", "expert", *experts, "pipeline")
            yield from _norm(view, everywhere, axes, "the gradient norm of the experts")


def reported(scalars: Scalars, view: View) -> Iterator[Event]:
    """Yield the numbers that a training loop adds up before its first micro-batch and after its update."""
    everywhere = tuple(range(view.mesh.stages))
    for number, told in enumerate(scalars.at_start):
        draft = _reported(told, ("data", "replicate"), "forward", "count before the first micro-batch")
        yield from view.at(draft, Integer(1), Site(BEGIN, (number,)), everywhere, view.values)
    for number, told in enumerate(scalars.at_end):
        draft = _reported(
            told, ("data", "context", "replicate"), "optimizer", "report at the end of the step"
        )
        yield from view.at(draft, Integer(1), Site(REPORT, (number,)), everywhere, view.values)


def _reported(told: Reported, axes: tuple[str, ...], phase: Phase, why: str) -> Draft:
    dtype, count = (told, 1) if isinstance(told, str) else told
    return Draft("scalars", "all_reduce", axes, phase, Integer(count * int(DTYPE_BYTES[dtype])), dtype, why)


def _norm(view: View, stage: Stage, axes: tuple[str, ...], what: str) -> Iterator[Event]:
    draft = Draft(
        "scalars", "all_reduce", axes, "optimizer", _FP32_BYTES, "fp32", f"add up the squares for {what}"
    )
    yield from view.once(draft, stage, order=(0,))


def loss(view: View) -> Iterator[Event]:
    """Yield the mean loss of the step, over all ranks that saw different tokens."""
    schedule = view.program.schedule
    last = schedule.virtual_stages - 1
    ranks = {schedule.host(last, 0), schedule.host(last, schedule.micro_batches - 1)}
    axes = ("data", "context", "replicate")
    draft = Draft("scalars", "all_reduce", axes, "backward", _FP32_BYTES, "fp32", "mean loss of the step")
    ends = Stage(tuple(sorted(ranks)), (), view.values)
    yield from view.once(draft, ends, order=(20,))
    if len(ranks) > 1:
        why = f"{draft.why}, over both ends of the pipeline"
        both = replace(draft, axes=("pipeline",), why=why, pairs=(ends.stages,))
        yield from view.once(both, ends, order=(21,))
