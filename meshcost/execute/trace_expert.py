"""Expert parallelism in plain PyTorch: experts dealt out over a group, tokens sent to them and back by all-to-all."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from meshcost.execute.torch_models import CausalModel
from meshcost.execute.torch_models.mlp import Experts, Routed, Work
from meshcost.execute.trace_world import Axes
from meshcost.strategies.torch_options import TorchOptions


def spread_experts(part: CausalModel, options: TorchOptions, axes: Axes) -> None:
    """Leave each rank its share of the experts, and let tokens travel."""
    mesh = axes.experts("expert")
    if mesh is None:
        return
    for module in part.modules():
        if isinstance(module, Routed):
            _share(module.experts, mesh)
            traveller = module.experts if options.exchange_inside else module
            traveller.exchange = partial(_exchange, mesh.get_group(), options.exchange_counts)


def _share(experts: Experts, mesh: DeviceMesh) -> None:
    """Keep one share of each weight, as a DTensor, so that everyone knows it is a part."""
    for name, weight in list(experts.named_parameters()):
        local = weight.data.chunk(mesh.size(), dim=0)[mesh.get_local_rank()].clone()
        whole = DTensor.from_local(local, mesh, (Shard(0),), run_check=False)
        experts.register_parameter(name, nn.Parameter(whole, requires_grad=weight.requires_grad))


def _exchange(
    group: dist.ProcessGroup,
    counts: bool,
    experts: Work,
    slots: torch.Tensor,
) -> torch.Tensor:
    """Send every expert its slots, let it work, and send them back. Slots are (experts, capacity, width)."""
    ranks, (number, capacity, width) = group.size(), slots.shape
    if counts:
        mine = torch.full((number,), capacity, dtype=torch.int64)
        dist.all_to_all_single(torch.empty_like(mine), mine, group=group)
    arrived = all_to_all(slots.reshape(-1, width), group).unflatten(0, (ranks, number // ranks, capacity))
    made = experts(arrived.transpose(0, 1).flatten(1, 2)).unflatten(1, (ranks, capacity))
    back = all_to_all(made.transpose(0, 1).reshape(-1, width), group)
    return back.unflatten(0, (number, capacity))


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        result = torch.empty_like(tensor)
        dist.all_to_all_single(result, tensor.contiguous(), group=group)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        result = torch.empty_like(gradients[0])
        dist.all_to_all_single(result, gradients[0].contiguous(), group=ctx.group)
        return result, None


def all_to_all(tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Trade equal parts of dim 0 with every rank of a group; the gradient travels back the same way."""
    result: torch.Tensor = _AllToAll.apply(tensor, group)  # type: ignore[no-untyped-call]  # torch does not type it
    return result


__all__: Sequence[str] = ("all_to_all", "spread_experts")
