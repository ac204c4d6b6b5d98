"""Data parallelism as PyTorch 2.13 does it.

Calls    ddp     all_reduce of each bucket of gradients, in the order in which they arrive
         zero1   the same, and a broadcast of each updated weight from its owner
         fsdp    all_gather P forward, all_gather P backward, reduce_scatter P backward, group by group of fully_shard
         HSDP    and all_reduce of each shard over the replicas
         FullyShardedDataParallel   the same with flat parameters; under NO_SHARD, all_reduce F of each in backward
Sends    P (d - 1) / d   bytes per call, ring
Assumes  P is the group with each weight padded along its first dim to a multiple of the ranks; F is a flat parameter
Source   ddp: torch.nn.parallel.DistributedDataParallel; under NO_SHARD torch.distributed.fsdp
         zero1: DistributedDataParallel and torch.distributed.optim.ZeroRedundancyOptimizer
         zero2, zero3, fsdp: torch.distributed.fsdp: fully_shard, FullyShardedDataParallel
         torch 2.13
"""

from collections.abc import Iterator
from dataclasses import replace

from sympy import Expr

from meshcost import symbols as sym
from meshcost.event import Event, Phase
from meshcost.models import Weight
from meshcost.strategies.data import torch_replicated as replicated
from meshcost.strategies.data.flat_parameter import flat_elements, is_sharded
from meshcost.strategies.data.fully_shard import WrappedGroup, by_name
from meshcost.strategies.data.options import DataParallel
from meshcost.strategies.data.padding import padded
from meshcost.strategies.data.textbook import DENSE, EXPERTS
from meshcost.strategies.data.torch_counts import Counts
from meshcost.strategies.torch_layout import replicates, shards_weights
from meshcost.strategies.view import Draft, View


def events(data: DataParallel, view: View) -> Iterator[Event]:
    """Yield what the asked-for strategy calls."""
    if shards_weights(view):
        yield from _fully_sharded(view)
    elif replicates(view):
        yield from replicated.events(data, view)


# -- fully_shard -----------------------------------------------------------------------------------------------------


def _fully_sharded(view: View) -> Iterator[Event]:
    counts = Counts(view)
    for name, made in by_name(view.setting, view.program.units).items():
        yield from _group(view, name, made, counts)


def _group(view: View, name: str, made: WrappedGroup, counts: Counts) -> Iterator[Event]:
    part, precision = (EXPERTS if made.apart else DENSE), view.setting.precision
    trained = tuple(weight for weight in made.weights if weight.trainable)
    whole = _elements(view, made.weights, part.axes) * sym.b_w
    phases: tuple[Phase, ...] = ("forward", "backward")
    for phase in phases:
        gather = Draft(
            "fsdp",
            "all_gather",
            part.axes,
            phase,
            whole,
            precision.dtype("weights"),
            f"collect {name} before its {phase}",
        )
        yield from counts.place(gather, f"gather {name}", (0,))
        again = replace(
            gather,
            why=f"collect {name} among the {made.group.part} ranks that kept it",
            split=made.group.part,
        )
        yield from counts.place(again, f"regather {name}", (0,))
    keeps = not view.setting.wraps_flat or is_sharded(view.setting)
    scatter = Draft(
        "fsdp",
        "reduce_scatter" if keeps else "all_reduce",
        part.axes,
        "backward",
        _elements(view, trained, part.axes) * sym.b_g,
        precision.dtype("reduce"),
        f"sum the gradients of {name}" + ("; each rank keeps its shard" if keeps else ""),
    )
    replicas = replace(
        scatter,
        op="all_reduce",
        axes=part.replicas,
        payload=scatter.payload / view.axis(*part.axes),
        why=f"sum the shard of the gradients of {name} over the replicas",
    )
    yield from counts.place(scatter, f"scatter {name}", (0,))
    yield from counts.place(replicas, f"scatter {name}", (1,))


def _elements(view: View, weights: tuple[Weight, ...], axes: tuple[str, ...]) -> Expr:
    """Elements of some weights on all ranks of a group together, padded as their wrapper does."""
    flat = view.setting.wraps_flat and weights
    return flat_elements(view, weights, view.axis(*axes)) if flat else padded(view, weights, axes)
