"""Pipeline parallelism as the papers have it.

Calls    per boundary and micro-batch: send and recv of the activations forward, of their gradients backward
         tied embedding with its two ends on two ranks: all_reduce of its gradients once a step
         dualpipe: all_reduce of the gradients of the two copies of every stage, once a step
Sends    (v p - 1) x m x 2 x b s h / c   elements in the whole pipeline; / t with sequence parallelism
Assumes  shapes are known beforehand, so no message describes them
Source   Narayanan et al. 2021, sections 2.2 and 4.1; Qi et al. 2023, 2024; DeepSeek-AI 2024, section 3.2.1
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from sympy import Expr, Integer

from meshcost import symbols as sym
from meshcost.event import Event
from meshcost.schedule import Schedule
from meshcost.strategies.pipeline.options import PipelineParallel
from meshcost.strategies.view import Draft, Stage, View

Way = Literal["forward", "backward"]
WAYS: tuple[Way, ...] = ("forward", "backward")
_AXES = ("pipeline",)
_WORDS = {
    "forward": ("the activations", "next stage", "stage before"),
    "backward": ("the gradients of the activations", "stage before", "next stage"),
}


def events(pipeline: PipelineParallel, view: View) -> Iterator[Event]:
    """Yield the messages between stages, and the sums over copies of the same weights."""
    if pipeline.size == 1:
        return
    for way in WAYS:
        yield from messages(pipeline, view, way)
    yield from _tied_embedding(view)
    yield from _copies(view)


def messages(pipeline: PipelineParallel, view: View, phase: Way) -> Iterator[Event]:
    """Yield what stages send each other in one direction, and what they receive."""
    payload = view.tokens * sym.h * sym.b_a
    gather = pipeline.scatter_gather and view.setting.size("tensor") > 1
    if gather:
        payload /= sym.t
    what, there, back = _WORDS[phase]
    schedule = view.program.schedule
    for (shift, boundaries), stages in neighbours(schedule, phase).items():
        send = _draft(view, "send", phase, payload, f"send {what} to the {there}", shift)
        yield from view.at_boundary(send, _times(boundaries, view), stages, order=2)
    for (shift, boundaries), stages in neighbours(schedule, phase, receiving=True).items():
        recv = _draft(view, "recv", phase, payload, f"receive {what} from the {back}", shift)
        yield from view.at_boundary(recv, _times(boundaries, view), stages, order=0)
        if gather:
            why = f"put {what} together again on every tensor rank"
            whole = _draft(view, "all_gather", phase, sym.T * sym.h * sym.b_a, why, shift)
            yield from view.at_boundary(
                replace(whole, axes=("tensor",)), _times(boundaries, view), stages, order=1
            )


def _draft(view: View, op: str, phase: Way, payload: Expr, why: str, shift: int) -> Draft:
    dtype = view.setting.precision.dtype("activations")
    return Draft("pipeline", op, _AXES, phase, payload, dtype, why, shift=shift)


def _times(boundaries: int, view: View) -> Expr:
    """Messages of one rank: chunks that pass on, times micro-batches."""
    chunks = view.program.schedule.chunks
    passes = view.passes
    if chunks > 1 and view.program.schedule.placement == "loop":
        known = {chunks: sym.v, chunks - 1: sym.v - 1}
        return known.get(boundaries, Integer(boundaries)) * passes
    return boundaries * passes


def neighbours(
    schedule: Schedule, phase: Way, *, receiving: bool = False
) -> dict[tuple[int, int], tuple[int, ...]]:
    """Group ranks by (distance to the peer along the flow, how many of their chunks pass on over that distance)."""
    step = 1 if phase == "forward" else -1
    table: dict[tuple[int, int], list[int]] = {}
    for rank in range(schedule.ranks):
        found: dict[int, int] = {}
        for stage, micro_batch in _chunks_on(schedule, rank):
            other = stage - step if receiving else stage + step
            if 0 <= other < schedule.virtual_stages and (peer := schedule.host(other, micro_batch)) != rank:
                distance = rank - peer if receiving else peer - rank
                found[distance % schedule.ranks] = found.get(distance % schedule.ranks, 0) + 1
        for distance, number in found.items():
            table.setdefault((distance, number), []).append(rank)
    return {key: tuple(ranks) for key, ranks in table.items()}


def _chunks_on(schedule: Schedule, rank: int) -> Iterator[tuple[int, int]]:
    """Virtual stages of a rank, each with a micro-batch that it runs."""
    for stage in schedule.hosted(rank):
        last = schedule.micro_batches - 1
        yield stage, 0 if schedule.host(stage, 0) == rank else last


def _tied_embedding(view: View) -> Iterator[Event]:
    ends = tuple(sorted(view.tie_ranks))
    words = [
        w for w in view.setting.model.unit_weights("embedding") if w.group == "embedding" and w.trainable
    ]
    if not ends or not words:
        return
    elements = _kept(view, view.local(words[0]), "data", "context")
    why = "sum the gradients of the tied embedding over its two copies"
    yield from view.once(_sum(view, elements, why, (ends,)), Stage(ends, (), view.values), order=(10,))


def _copies(view: View) -> Iterator[Event]:
    """In a bidirectional schedule two ranks hold the same two stages."""
    schedule = view.program.schedule
    if schedule.placement != "mirror":
        return
    for stage in view.stages:
        pairs = tuple(dict.fromkeys(schedule.hosted(rank) for rank in stage.stages))
        for elements in (
            _kept(view, stage.total("trained"), "data", "context"),
            _kept(view, stage.total("trained_experts"), "expert_data"),
        ):
            why = "sum the gradients of the two copies of these stages"
            yield from view.once(_sum(view, elements, why, pairs), stage, order=(10,))


def _sum(view: View, elements: Expr, why: str, pairs: tuple[tuple[int, ...], ...]) -> Draft:
    dtype = view.setting.precision.dtype("reduce")
    return Draft("pipeline", "all_reduce", _AXES, "backward", elements * sym.b_g, dtype, why, pairs)


def _kept(view: View, elements: Expr, *axes: str) -> Expr:
    """What one rank keeps of some gradients: all, or its shard over these axes."""
    return view.shard(elements, *axes) if view.setting.parallel["data"].shards_gradients else elements
