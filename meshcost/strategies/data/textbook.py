"""Data parallelism as the papers have it.

Calls    ddp     all_reduce W backward
         zero1   reduce_scatter W backward, all_gather W optimizer
         zero2   reduce_scatter W backward in every micro-batch, all_gather W optimizer
         zero3   all_gather W forward, all_gather W backward, reduce_scatter W backward, unit by unit
         HSDP    as zero3 among the ranks of one replica, and all_reduce of each shard over the replicas
Sends    2 W, 2 W, 2 W, 3 W times (d - 1) / d   elements per rank and micro-batch, ring
Assumes  weights are dense buffers without padding; only weights with gradients are reduced or updated
Source   ddp: Li et al. 2020
         Rajbhandari et al. 2020, section 7
         zero3, fsdp: Zhao et al. 2023, section 3.2 (hybrid sharding: 3.2.2)
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from meshcost import symbols as sym
from meshcost.event import Event
from meshcost.strategies.data.options import DataParallel
from meshcost.strategies.view import Draft, Stage, Unit, View, When

#: Orders within a unit: weights come before everything else in it, gradients leave after everything else.
GATHER, SYNC, SYNC_REPLICAS = (-9,), (9,), (9, 1)


class Part(NamedTuple):
    """Weights that are sharded over one and the same group: all but routed experts, or routed experts."""

    label: str
    held: Literal["weights", "experts"]
    trained: Literal["trained", "trained_experts"]
    axes: tuple[str, ...]
    replicas: tuple[str, ...]


DENSE = Part("weights", "weights", "trained", ("data", "context"), ("replicate",))
EXPERTS = Part("expert weights", "experts", "trained_experts", ("expert_data",), ("expert_replicate",))


def events(data: DataParallel, view: View) -> Iterator[Event]:
    """Yield what the asked-for strategy calls, for dense weights and, over their own group, for routed experts."""
    for part in (DENSE, EXPERTS):
        if data.strategy in ("zero3", "fsdp"):
            for unit in view.units:
                yield from _fully_sharded(data, view, unit, part)
        else:
            for stage in view.stages:
                yield from _replicated(data, view, stage, part)
            for passed in view.passed if data.syncs_every_micro_batch else ():
                yield from view.after_micro_batches(_total(data, view, passed, part), passed, order=SYNC)


def _replicated(data: DataParallel, view: View, stage: Stage, part: Part) -> Iterator[Event]:
    """Yield the calls of ddp, zero1 and zero2: every rank holds all weights of its stage."""
    gradients, precision = stage.total(part.trained), view.setting.precision
    if not data.syncs_every_micro_batch:
        yield from view.once(_total(data, view, stage, part), stage, order=SYNC)
    if data.strategy != "ddp":
        updated = Draft(
            data.strategy,
            "all_gather",
            part.axes,
            "optimizer",
            gradients * sym.b_w,
            precision.dtype("weights"),
            f"collect the updated {part.label} from the ranks that updated them",
        )
        yield from view.once(updated, stage, order=SYNC)


def _total(data: DataParallel, view: View, stage: Stage, part: Part) -> Draft:
    op, keeps = (
        ("all_reduce", "") if data.strategy == "ddp" else ("reduce_scatter", "; each rank keeps its shard")
    )
    trainable = "" if all(weight.trainable for weight in view.setting.model.distinct) else "trainable "
    return Draft(
        data.strategy,
        op,
        part.axes,
        "backward",
        stage.total(part.trained) * sym.b_g,
        view.setting.precision.dtype("reduce"),
        f"sum the gradients of all {trainable}{part.label}{keeps}",
    )


def _fully_sharded(data: DataParallel, view: View, unit: Unit, part: Part) -> Iterator[Event]:
    """Yield the calls of zero3 and fsdp: every rank holds a shard of each unit."""
    yield from _gathers(data, view, unit, part)
    trained, dtype = getattr(unit, part.trained), view.setting.precision.dtype("reduce")
    when: When = "every" if data.syncs_every_micro_batch else "last"
    if trained == 0:
        return
    scatter = Draft(
        data.strategy,
        "reduce_scatter",
        part.axes,
        "backward",
        trained * sym.b_g,
        dtype,
        f"sum the gradients of {_unit(unit)} {part.label}; each rank keeps its shard",
    )
    replicas = Draft(
        data.strategy,
        "all_reduce",
        part.replicas,
        "backward",
        view.shard(trained, *part.axes) * sym.b_g,
        dtype,
        f"sum the shard of the gradients of {_unit(unit)} {part.label} over the replicas",
    )
    yield from view.call(scatter, unit, order=SYNC, micro_batches=when)
    yield from view.call(replicas, unit, order=SYNC_REPLICAS, micro_batches=when)


def _gathers(data: DataParallel, view: View, unit: Unit, part: Part) -> Iterator[Event]:
    phases: tuple[Literal["forward", "backward"], ...] = (
        ("forward", "backward") if data.gathers_again else ("forward",)
    )
    for phase in phases:
        draft = Draft(
            data.strategy,
            "all_gather",
            part.axes,
            phase,
            getattr(unit, part.held) * sym.b_w,
            view.setting.precision.dtype("weights"),
            f"collect {_unit(unit)} {part.label} before their {phase} pass",
        )
        yield from view.call(
            draft, unit, order=GATHER, micro_batches="first" if data.gather == "once" else "every"
        )


def _unit(unit: Unit) -> str:
    return {"embedding": "the embedding's", "head": "the head's"}.get(unit.name, "a block's")
