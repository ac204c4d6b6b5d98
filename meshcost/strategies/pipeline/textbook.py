"""Pipeline parallelism as the papers have it.

Calls    per boundary and micro-batch: send and recv of the activations forward, of their gradients backward
         tied embedding with its two ends on two ranks: all_reduce of its gradients once a step
         dualpipe: all_reduce of the gradients of the two copies of every stage, once a step
Sends    (v p - 1) boundaries x m micro-batches x 2 x b s h / c   elements in the whole pipeline; / t with sequence parallelism
Assumes  shapes are known beforehand, so no message describes them
Source   Narayanan et al. 2021, sections 2.2 and 4.1; Qi et al. 2023, 2024; DeepSeek-AI 2024, section 3.2.1
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from sympy import Expr, Integer

from meshcost import symbols as sym
from meshcost.ledger import Event
from meshcost.schedule import Schedule
from meshcost.strategies.view import View

if TYPE_CHECKING:
    from meshcost.strategies.pipeline.options import PipelineParallel


def events(pipeline: "PipelineParallel", view: View) -> Iterator[Event]:
    """Yield the messages between stages, and the sums over copies of the same weights."""
    if pipeline.size == 1:
        return
    yield from _messages(pipeline, view, "forward")
    yield from _messages(pipeline, view, "backward")
    yield from _tied_embedding(view)
    yield from _copies(view)


def _messages(pipeline: "PipelineParallel", view: View, phase: Literal["forward", "backward"]) -> Iterator[Event]:
    payload = view.tokens * sym.h * sym.b_a
    gather = pipeline.scatter_gather and view.setting.size("tensor") > 1
    if gather:
        payload /= sym.t
    forward = phase == "forward"
    what = "the activations" if forward else "the gradients of the activations"
    there, back = ("next stage", "stage before") if forward else ("stage before", "next stage")
    schedule = view.program.schedule
    for (shift, boundaries), stages in _neighbours(schedule, phase).items():
        count = _times(boundaries, view)
        yield from view.at_boundary(
            "send", phase, payload, count, f"send {what} to the {there}", stages, shift=shift, order=2
        )
    for (shift, boundaries), stages in _neighbours(schedule, phase, receiving=True).items():
        count = _times(boundaries, view)
        yield from view.at_boundary(
            "recv", phase, payload, count, f"receive {what} from the {back}", stages, shift=shift, order=0
        )
        if gather:
            whole = sym.T * sym.h * sym.b_a
            why = f"put {what} together again on every tensor rank"
            yield from view.at_boundary(
                "all_gather", phase, whole, count, why, stages, axes=("tensor",), shift=shift, order=1
            )


def _times(boundaries: int, view: View) -> Expr:
    """Messages of one rank: chunks that pass on, times micro-batches."""
    chunks = view.program.schedule.chunks
    passes = view.passes
    if chunks > 1 and view.program.schedule.placement == "loop":
        known = {chunks: sym.v, chunks - 1: sym.v - 1}
        return known.get(boundaries, Integer(boundaries)) * passes
    return boundaries * passes


def _neighbours(
    schedule: Schedule, phase: Literal["forward", "backward"], *, receiving: bool = False
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
    if not view.tie_ranks:
        return
    ends = tuple(sorted(view.tie_ranks))
    words = [w for w in view.setting.model.unit_weights("embedding") if w.group == "embedding" and w.trainable]
    for unit in view.units:
        if unit.name == "embedding" and words:
            yield from view.once(
                "pipeline",
                "all_reduce",
                ("pipeline",),
                replace(unit, stages=ends),
                "backward",
                _kept(view, view.local(words[0])) * sym.b_g,
                "sum the gradients of the tied embedding over its two copies",
                dtype=view.setting.precision.dtype("reduce"),
                order=(10,),
                pairs=(ends,),
            )


def _copies(view: View) -> Iterator[Event]:
    """In a bidirectional schedule two ranks hold the same two stages."""
    if view.program.schedule.placement != "mirror":
        return
    for stage in view.stages:
        pairs = tuple(dict.fromkeys(view.program.schedule.hosted(rank) for rank in stage.stages))
        for what, axes in (("trained", ("data", "context")), ("trained_experts", ("expert_data",))):
            elements = stage.total(what)  # type: ignore[arg-type]
            yield from view.once(
                "pipeline",
                "all_reduce",
                ("pipeline",),
                stage,
                "backward",
                _kept(view, elements, *axes) * sym.b_g,
                "sum the gradients of the two copies of these stages",
                dtype=view.setting.precision.dtype("reduce"),
                order=(10,),
                pairs=pairs,
            )


def _kept(view: View, elements: Expr, *axes: str) -> Expr:
    """What one rank keeps of some gradients: all, or its shard."""
    if not view.setting.parallel["data"].shards_gradients:
        return elements
    return view.shard(elements, *(axes or ("data", "context")))
