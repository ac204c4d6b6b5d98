"""Pipeline parallelism as PyTorch 2.13 does it.

Calls    per boundary and micro-batch: send and recv of the activations forward, of their gradients backward
         first step: send and recv of 4 B per boundary and direction, by which stages agree on whether shapes are known
Sends    as the textbook; a tied embedding is not summed over its two ends
Assumes  shapes are known to the stages (``static_shapes``)
Source   torch.distributed.pipelining: PipelineStage and the schedules
"""

from collections.abc import Iterator

from sympy import Integer

from meshcost.event import Event, Site
from meshcost.strategies.pipeline.options import PipelineParallel
from meshcost.strategies.pipeline.textbook import WAYS, messages, neighbours
from meshcost.strategies.view import Draft, View
from meshcost.torch_program import VOTE


def events(pipeline: PipelineParallel, view: View) -> Iterator[Event]:
    """Yield the messages between stages, and those of the first step."""
    if pipeline.size == 1:
        return
    for way in WAYS:
        yield from messages(pipeline, view, way)
    if view.setting.torch.step == 0:
        yield from _votes(view)


def _votes(view: View) -> Iterator[Event]:
    for way in WAYS:
        for op in ("send", "recv"):
            found = neighbours(view.program.schedule, way, receiving=op == "recv")
            for (shift, boundaries), stages in found.items():
                why = "agree with a neighbouring stage on whether shapes are known"
                draft = Draft("pipeline", op, ("pipeline",), "forward", Integer(4), "int32", why, shift=shift)
                site = Site(f"{VOTE} {way}", (0 if op == "recv" else 1,))
                yield from view.at(draft, Integer(boundaries), site, stages, view.values)
