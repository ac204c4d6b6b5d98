"""Data parallelism as PyTorch does it: DistributedDataParallel, and fully_shard in one dim or two."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from meshcost.execute.torch_models import CausalModel
from meshcost.execute.trace_world import Axes
from meshcost.job import Job
from meshcost.models import Model
from meshcost.strategies.data.padding import cut_dim
from meshcost.strategies.torch_options import BLOCKS, TorchOptions, Unit
from meshcost.strategies.torch_units import unit_modules

TORCH_DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}

#: Axes over which weights are sharded, or gradients summed, together.
SHARD_AXES = ("data", "context")


def stored_dtype(job: Job, options: TorchOptions) -> torch.dtype:
    """What weights are stored in: both kinds of FSDP keep them in fp32 and cast what they gather."""
    if options.weights_dtype is not None:
        return TORCH_DTYPES[options.weights_dtype]
    return torch.float32 if shards(job) or job.setting.wraps_flat else TORCH_DTYPES[job.precision.weights]


def shards(job: Job) -> bool:
    """Whether the job wants fully_shard."""
    return job.parallel.data.strategy in ("fsdp", "zero3") and not job.setting.wraps_flat


def checkpoint_blocks(part: CausalModel, options: TorchOptions) -> None:
    """Recompute each block in its backward, but for the operations whose results are saved."""
    more: dict[str, Any] = {"early_stop": options.early_stop}
    if options.checkpoint_saves:
        more["context_fn"] = partial(create_selective_checkpoint_contexts, partial(_policy_of, options))
    for name, block in part.layers.items():
        part.layers[name] = checkpoint_wrapper(block, **more)


def _policy_of(options: TorchOptions, context: object, op: object, *args: object, **kwargs: object) -> Any:
    is_saved = any(f"_c10d_functional.{name}" in str(op) for name in options.checkpoint_saves)
    return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE


class _Chunks(Sequence[torch.Tensor]):
    """What ``torch.chunk`` gives, and empty ones after it, each made when it is asked for."""

    def __init__(self, tensor: torch.Tensor, number: int, dim: int) -> None:
        self.tensor, self.number, self.dim = tensor, number, dim
        self.length = tensor.size(dim)
        self.step = -(-self.length // number)

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, place: Any) -> Any:
        start = min(place * self.step, self.length)
        length = min(self.step, self.length - start)
        return self.tensor.narrow(self.dim, start, length) if length else self.tensor.new_empty(0)


@contextmanager
def _lazy_chunks() -> Iterator[None]:
    """Let fully_shard make only the chunk it wants: it makes those of thousands of ranks, and that takes minutes."""
    home: Any = import_module("torch.distributed.fsdp._fully_shard._fsdp_param")
    original = home.__dict__.get("_chunk_with_empty")
    if original is not None:
        home._chunk_with_empty = _Chunks
    try:
        yield
    finally:
        if original is not None:
            home._chunk_with_empty = original


def shard(part: CausalModel, job: Job, options: TorchOptions, axes: Axes) -> None:
    """Apply fully_shard to every unit and then to the root."""
    mesh = axes.grid("replicate", *SHARD_AXES) if job.parallel.data.replicate > 1 else axes.sub(*SHARD_AXES)
    if mesh is None:
        return
    common: dict[str, Any] = {"mesh": mesh}
    if (policy := _policy(job, options)) is not None:
        common["mp_policy"] = policy
    if options.shard_placement_fn:
        common["shard_placement_fn"] = _placement(part, job)
    reshard = _reshard(job, options)
    # Experts have ranks of their own, so that a number of ranks that keep weights among them is none for them.
    own = {**common, "reshard_after_forward": reshard if isinstance(reshard, bool) else None}
    _shard_experts(part, own, axes)
    model = job.setting.model
    units = [modules for unit in options.units for modules in unit_parts(part, model, unit)]
    with _lazy_chunks():
        for place, modules in enumerate(units):
            is_kept = options.keep_last_unit and place == len(units) - 1
            fully_shard(modules, reshard_after_forward=False if is_kept else reshard, **common)
        fully_shard(part, reshard_after_forward=reshard, **common)
    if options.prefetch == "next_unit":
        _tell_next(part, [modules[0] for modules in units])


def _placement(part: CausalModel, job: Job) -> Callable[[nn.Parameter], Shard]:
    """Find the dim along which each weight is cut."""
    dims = {}
    by_name = {weight.name: weight for kind in job.setting.model.kinds for weight in kind.weights}
    for name, parameter in part.named_parameters():
        weight = by_name.get(re.sub(r"\.\d+\.", ".{layer}.", name, count=1))
        dims[id(parameter)] = cut_dim(job.setting, weight) if weight is not None else 0
    return lambda parameter: Shard(dims[id(parameter)])


def _tell_next(part: CausalModel, units: Sequence[nn.Module]) -> None:
    """Tell each unit to gather the next one in advance; a block gathers the experts of a block too."""
    order = list(part.modules())
    outer = [
        unit for unit in units if not any(unit in other.modules() for other in units if other is not unit)
    ]
    units = sorted(outer, key=order.index)
    for here, there in pairwise(units):
        assert isinstance(here, FSDPModule)
        assert isinstance(there, FSDPModule)
        here.set_modules_to_forward_prefetch(_seen_from(here, there, part))
        there.set_modules_to_backward_prefetch(_seen_from(there, here, part))


def _seen_from(here: nn.Module, unit: nn.Module, part: CausalModel) -> list[Any]:
    inside = [x for x in unit.modules() if x is not unit and isinstance(x, FSDPModule)]
    return [unit, *inside] if here in part.blocks else [unit]


def _shard_experts(part: CausalModel, common: dict[str, Any], axes: Axes) -> None:
    """Experts that other ranks hold in part are sharded among those that hold the same ones."""
    if axes.expert is None or axes.experts("expert") is None:
        return
    # Even alone: what fully_shard does to the rest of a block cannot be done to what other ranks hold in part.
    replicas = ("expert_replicate",) if axes.experts("expert_replicate") is not None else ()
    mesh = axes.expert[(*replicas, "expert_data")]
    for block in part.blocks:
        experts = block.get_submodule("mlp")._modules.get("experts")
        if experts is not None:
            fully_shard(experts, **{**common, "mesh": mesh})


def unit_parts(part: CausalModel, model: Model, unit: Unit) -> list[list[nn.Module]]:
    """Modules of a unit that this part of the model has."""
    if unit == BLOCKS:
        return [[block] for block in part.layers.values()]
    here = dict(part.named_modules())
    return [[here[name] for name in names] for names in unit_modules(model, unit, here)]


def _policy(job: Job, options: TorchOptions) -> MixedPrecisionPolicy | None:
    stored, used = stored_dtype(job, options), TORCH_DTYPES[job.precision.dtype("weights")]
    reduced = TORCH_DTYPES[job.precision.dtype("reduce")]
    if stored == used == reduced:
        return None
    return MixedPrecisionPolicy(
        param_dtype=used if used != stored else None, reduce_dtype=reduced if reduced != used else None
    )


def _reshard(job: Job, options: TorchOptions) -> bool | int | None:
    if options.reshard_after_forward is not None:
        return options.reshard_after_forward
    return job.parallel.data.reshard_after_forward


def replicate(part: nn.Module, options: TorchOptions, axes: Axes, *, fake: bool) -> nn.Module:
    """Wrap a model in DistributedDataParallel; experts that other ranks hold in part are left to themselves."""
    group = axes.group("data", "context", "replicate")
    if group is None or group.size() == 1:
        return part
    names = [
        name
        for name, weight in part.named_parameters()
        if ".experts." in name and isinstance(weight, DTensor)
    ]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(part, names)
    if axes.sub("tensor") is not None:
        # DistributedDataParallel knows no DTensor; torch's own cure for it.
        _pre_dp_module_transform(part)
    wrapped = DistributedDataParallel(
        part,
        process_group=group,
        bucket_cap_mb=options.bucket_cap_mb,
        find_unused_parameters=options.find_unused_parameters,
        static_graph=options.static_graph,
        gradient_as_bucket_view=options.gradient_as_bucket_view,
        broadcast_buffers=options.broadcast_buffers,
    )
    if fake:
        # The fake group's work has no result, which the reducer of C++ insists on; a hook in Python has one.
        wrapped.register_comm_hook(group, reduce_whole)
    return wrapped


def reduce_whole(group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Reduce a bucket as DistributedDataParallel does without a hook."""
    buffer = bucket.buffer()
    dist.all_reduce(buffer, group=group)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(buffer)
    return done


def prepare_micro_batch(
    parts: Sequence[nn.Module], job: Job, options: TorchOptions, *, is_last: bool
) -> None:
    """Tell fully_shard what this micro-batch has to do."""
    every = options.set_requires_gradient_sync
    syncs = job.parallel.data.syncs_every_micro_batch if every is None else every == "every"
    for part in parts:
        if isinstance(part, FSDPModule):
            part.set_requires_gradient_sync(syncs or is_last)
            if options.set_reshard_after_backward == "last":
                part.set_reshard_after_backward(is_last)
            if options.set_is_last_backward:
                part.set_is_last_backward(is_last)
