"""FullyShardedDataParallel, the older FSDP, as PyTorch does it: each unit in one flat parameter."""

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import CustomPolicy

from meshcost.execute.torch_models import CausalModel
from meshcost.execute.trace_data import TORCH_DTYPES, stored_dtype, unit_parts
from meshcost.execute.trace_world import Axes
from meshcost.job import Job
from meshcost.strategies.data.flat_parameter import sharding_strategy
from meshcost.strategies.torch_options import TorchOptions


def wrap_flat(part: CausalModel, job: Job, options: TorchOptions, axes: Axes) -> nn.Module:
    """Wrap every unit in FullyShardedDataParallel, and then the root."""
    replicas = job.parallel.data.replicate > 1
    mesh = axes.grid("replicate", "data") if replicas else axes.sub("data")
    units = {id(module) for unit in options.units for (module,) in unit_parts(part, job.setting.model, unit)}
    prefetch = options.backward_prefetch
    made: nn.Module = FullyShardedDataParallel(
        part,
        device_mesh=mesh,
        device_id=torch.device("cpu"),
        sharding_strategy=ShardingStrategy[sharding_strategy(job.setting)],
        auto_wrap_policy=CustomPolicy(lambda module: id(module) in units),
        backward_prefetch=None if prefetch is None else BackwardPrefetch[prefetch],
        forward_prefetch=options.forward_prefetch,
        limit_all_gathers=options.limit_all_gathers,
        use_orig_params=options.use_orig_params,
        mixed_precision=_mixed_precision(job, options),
    )
    return made


def _mixed_precision(job: Job, options: TorchOptions) -> MixedPrecision | None:
    used, reduced = (TORCH_DTYPES[job.precision.dtype(what)] for what in ("weights", "reduce"))
    more: dict[str, Any] = {"keep_low_precision_grads": options.keep_low_precision_grads}
    if stored_dtype(job, options) == used == reduced and not options.keep_low_precision_grads:
        return None
    return MixedPrecision(param_dtype=used, reduce_dtype=reduced, **more)
