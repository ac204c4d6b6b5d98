"""One training step as people write it: micro-batches, clipping, optimizer."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from meshcost import symbols as sym
from meshcost.execute.trace_data import prepare_micro_batch
from meshcost.execute.trace_tensor import splits_loss
from meshcost.execute.trace_world import Axes
from meshcost.job import Job
from meshcost.strategies.torch_options import TorchOptions


def tokens(job: Job, number: int) -> torch.Tensor:
    """Random tokens: ``number`` micro-batches of one rank, its part of each sequence."""
    batch = job.batch
    shape = (number * batch.micro_batch, batch.sequence // job.parallel.context.size)
    return torch.randint(job.setting.model.dims[sym.V], shape)


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy, in fp32 as everyone computes it."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))


def loss_context(job: Job) -> AbstractContextManager[Any]:
    """Compute the loss on split logits where the job says so."""
    return loss_parallel() if splits_loss(job) else nullcontext()


def make_optimizer(
    parts: Iterable[nn.Module], job: Job, options: TorchOptions, axes: Axes
) -> torch.optim.Optimizer | None:
    """Make the optimizer over all weights that train."""
    if options.optimizer is None:
        return None
    weights = [weight for part in parts for weight in part.parameters() if weight.requires_grad]
    kind = getattr(torch.optim, options.optimizer)
    settings = {
        name: getattr(options, name) for name in ("foreach", "fused") if getattr(options, name) is not None
    }
    group = axes.group("data", "context", "replicate")
    # One rank has nothing to spread, and without a group torch would take all ranks there are.
    if job.parallel.data.strategy == "zero1" and group is not None and group.size() > 1:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        made: torch.optim.Optimizer = ZeroRedundancyOptimizer(
            weights,
            optimizer_class=kind,
            process_group=group,
            parameters_as_bucket_view=options.parameters_as_bucket_view,
            lr=1e-3,
            **settings,
        )
        return made
    plain: torch.optim.Optimizer = kind(weights, lr=1e-3, **settings)
    return plain


def accumulate(model: nn.Module, job: Job, options: TorchOptions) -> torch.Tensor:
    """Compute all micro-batches of a step, forward and backward; returns the last loss."""
    number, loss = job.micro_batches, torch.zeros(())
    for micro_batch in range(number):
        is_last = micro_batch == number - 1
        prepare_micro_batch([model], job, options, is_last=is_last)
        inputs, labels = tokens(job, 1), tokens(job, 1)
        with _sync(model, job, options, is_last=is_last), loss_context(job):
            loss = loss_of(model(inputs), labels)
            loss.backward()
    return loss.detach()


@contextmanager
def _sync(model: nn.Module, job: Job, options: TorchOptions, *, is_last: bool) -> Iterator[None]:
    every = options.set_requires_gradient_sync
    syncs = job.parallel.data.syncs_every_micro_batch if every is None else every == "every"
    with (
        model.no_sync()
        if isinstance(model, DistributedDataParallel | FullyShardedDataParallel) and not (syncs or is_last)
        else nullcontext()
    ):
        yield


def finish(
    parts: Sequence[nn.Module],
    optimizer: torch.optim.Optimizer | None,
    loss: torch.Tensor | None,
    job: Job,
    options: TorchOptions,
    axes: Axes,
) -> None:
    """Report the loss, clip, let the optimizer step."""
    if loss is not None and job.scalars.loss:
        group = axes.group("data", "context", "replicate")
        if group is not None and group.size() > 1:
            local = loss.full_tensor() if isinstance(loss, DTensor) else loss
            dist.all_reduce(local.clone(), group=group)
    if job.scalars.gradient_norm:
        _clip_all(parts, options, axes)
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()


def _clip_all(parts: Sequence[nn.Module], options: TorchOptions, axes: Axes) -> None:
    flat = [part for part in parts if isinstance(part, FullyShardedDataParallel)]
    if flat:
        for part in flat:
            part.clip_grad_norm_(1.0)
    else:
        _clip([weight for part in parts for weight in part.parameters()], options, axes)


def _is_of_experts(mesh: DeviceMesh | None) -> bool:
    return any(name.startswith("expert") for name in (mesh and mesh.mesh_dim_names) or ())


def _clip(weights: Sequence[nn.Parameter], options: TorchOptions, axes: Axes) -> None:
    """Clip by norm, one call for the weights of each device mesh, experts first: torch refuses to mix them."""
    groups: dict[DeviceMesh | None, list[nn.Parameter]] = {}
    for weight in weights:
        if weight.grad is not None:
            key = weight.grad.device_mesh if isinstance(weight.grad, DTensor) else None
            groups.setdefault(key, []).append(weight)
    squares = []
    # Also in a stage that holds no gradients, as one whose DTensors were wrapped: the others wait for its sum.
    for mesh in sorted(groups, key=lambda mesh: not _is_of_experts(mesh)) or (None,):
        group = groups.get(mesh, [])
        norm = nn.utils.clip_grad_norm_(group, 1.0, foreach=options.clip_foreach)
        squares.append((norm.full_tensor() if isinstance(norm, DTensor) else norm) ** 2)
    pipeline = axes.group("pipeline")
    if pipeline is not None:
        dist.all_reduce(torch.stack([square.float() for square in squares]).sum(), group=pipeline)
