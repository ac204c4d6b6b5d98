"""Small calls as PyTorch makes them.

Calls    all_reduce of 4 B over all ranks that saw different tokens (the mean loss), on the last stage, once a step
         all_reduce of 4 B for each weight over each axis that shards some of them (clip_grad_norm_ stacks their norms),
         once for the weights of each device mesh; before it an all_reduce of each gradient that is a partial sum
         all_reduce of 4 B over pipeline stages
         FullyShardedDataParallel.clip_grad_norm_: one all_reduce of 4 B over the ranks of a shard group
Assumes  clip_grad_norm_ for the weights of one device mesh after the other, since it refuses to mix them
Source   torch.nn.utils.clip_grad_norm_ and DTensor's norms (torch 2.13)
"""

from collections.abc import Iterator

from sympy import Add, Expr, Integer

from meshcost.event import Event, Phase
from meshcost.models import Weight
from meshcost.strategies.data.flat_parameter import is_sharded
from meshcost.strategies.scalars.options import Scalars
from meshcost.strategies.scalars.textbook import loss, reported
from meshcost.strategies.torch_layout import (
    computed_in,
    is_trained,
    module_of,
    partial_runs,
    planned_modules,
    replicates,
    shards_weights,
    stored_in,
)
from meshcost.strategies.view import Draft, Stage, Unit, View

_FP32_BYTES = Integer(4)

#: A device mesh: the axes of its dims, outermost first. Weights that are no DTensors have none.
Dims = tuple[tuple[str, ...], ...]


def events(scalars: Scalars, view: View) -> Iterator[Event]:
    """Yield the loss and the norm."""
    yield from reported(scalars, view)
    if scalars.loss:
        yield from loss(view)
    if scalars.gradient_norm:
        for unit in view.units:
            yield from _partial(view, unit)
        for stage in view.stages:
            yield from _flat_norm(view, stage) if view.setting.wraps_flat else _norms(view, stage)
        everywhere = Stage(tuple(range(view.mesh.stages)), (), view.values)
        draft = _draft(("pipeline",), "optimizer", _FP32_BYTES, "add up the squares of the gradient norm")
        yield from view.once(draft, everywhere, order=(1,))


def _draft(axes: tuple[str, ...], phase: Phase, payload: Expr, why: str, dtype: str = "fp32") -> Draft:
    return Draft("scalars", "all_reduce", axes, phase, payload, dtype, why)


def _partial(view: View, unit: Unit) -> Iterator[Event]:
    """A norm of a gradient that is a partial sum needs the sum; fully_shard and DistributedDataParallel have made it."""
    if shards_weights(view) or replicates(view):
        return
    dtype, size = computed_in(view)
    for number, (elements, times) in enumerate(partial_runs(view, unit.held)):
        why = "sum the gradient of a norm that stayed a partial sum, to take its norm"
        draft = Draft("scalars", "all_reduce", ("tensor",), "optimizer", elements * size, dtype, why)
        yield from view.each(draft, unit, "clip", order=(number,), repeat=times)


def _norms(view: View, stage: Stage) -> Iterator[Event]:
    """Reduce the stacked norms of the weights of each device mesh, over one of its dims after the other."""
    numbers: dict[Dims, list[Expr]] = {}
    for unit in stage.units:
        for dims, number in _meshes(view, unit).items():
            numbers.setdefault(dims, []).append(unit.blocks * number)
    dtype, size = stored_in(view)
    # Who deals experts out, torchtitan, takes their norm before that of all others.
    numbers = dict(sorted(numbers.items(), key=lambda item: not _is_of_experts(item[0])))
    for place, (dims, found) in enumerate(numbers.items()):
        for dim, axes in enumerate(dims):
            draft = _draft(axes, "optimizer", size * Add(*found), "add up the norms of all gradients", dtype)
            yield from view.once(draft, stage, order=(0, place, dim))


def _is_of_experts(dims: Dims) -> bool:
    return any(axis.startswith("expert") for axes in dims for axis in axes)


def _flat_norm(view: View, stage: Stage) -> Iterator[Event]:
    """FullyShardedDataParallel has a method of its own: one number, over the ranks that hold other parts."""
    if is_sharded(view.setting):
        draft = _draft(
            ("data", "context"), "optimizer", _FP32_BYTES, "add up the squares of the gradient norm"
        )
        yield from view.once(draft, stage, order=(0,))


def _meshes(view: View, unit: Unit) -> dict[Dims, int]:
    """Count the trained weights of a unit on each device mesh, in order of appearance."""
    planned = planned_modules(view, unit)
    found: dict[Dims, int] = {}
    weights = [(weight, module_of(weight) in planned) for weight in unit.held if is_trained(view, weight)]
    for weight, is_planned in (*weights, *((weight, True) for weight in _second_tied_weight(view, unit))):
        dims = _mesh(view, weight, is_planned=is_planned)
        found[dims] = found.get(dims, 0) + 1
    return found


def _mesh(view: View, weight: Weight, *, is_planned: bool) -> Dims:
    """Axes along which a weight is a part of the whole, or lies beside parts on the same device mesh."""
    if weight.group == "expert" and view.setting.experts_apart:
        dims: Dims = (("expert_data",), ("expert",), ("expert_tensor",))
        if view.setting.torch.flat_expert_mesh and shards_weights(view):
            return (("expert_data", "expert"),)
    elif replicates(view):
        return ()
    else:
        dims = (("data", "context"), ("tensor",) if is_planned else ())
    dims = dims if shards_weights(view) else dims[1:]
    return tuple(axes for axes in dims if view.mesh.size(*axes) > 1)


def _second_tied_weight(view: View, unit: Unit) -> tuple[Weight, ...]:
    """A plan for both the embedding and a head tied to it makes two weights of one."""
    if unit.name != "head" or not view.setting.unties or view.tie_ranks:
        return ()
    return tuple(
        w for w in view.setting.model.unit_weights("embedding") if w.group == "embedding" and w.trainable
    )
