"""Context parallelism as PyTorch does it: its ring attention in place of the attention of each block."""

from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist

from meshcost.execute.torch_models import CausalModel
from meshcost.execute.torch_models.attention import Attention, LatentAttention
from meshcost.execute.trace_world import Axes
from meshcost.job import Job
from meshcost.strategies.torch_options import TorchOptions

# Torch 2.10 moved its ring attention; the old place keeps only a part of it.
try:
    ring: Any = import_module("torch.distributed.tensor.experimental._context_parallel._attention")
except ImportError:
    ring = import_module("torch.distributed.tensor.experimental._attention")

_SEQUENCE = 2  # the dim of (batch, heads, sequence, size)


def attend_around(part: CausalModel, job: Job, options: TorchOptions, axes: Axes) -> None:
    """Let attention go around the context axis, where there is one."""
    group = axes.group("context")
    if group is None:
        return
    asked = options.rotate_method or ("alltoall" if job.parallel.context.method == "ring" else "allgather")
    ring.set_rotate_method(asked)
    ring._cp_options.enable_load_balance = options.load_balance
    for module in part.modules():
        if isinstance(module, Attention | LatentAttention):
            module.core = partial(_around, group)


def _around(
    group: dist.ProcessGroup, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    shared = query.shape[1] // key.shape[1]
    if shared > 1:
        key, value = (x.repeat_interleave(shared, dim=1) for x in (key, value))
    made: torch.Tensor = _Ring.apply(group, query, key, value)  # type: ignore[no-untyped-call]  # torch does not type it
    return made


class _Ring(torch.autograd.Function):
    """Torch offers ring attention for kernels of accelerators; this is the same code with the kernel of the CPU."""

    @staticmethod
    def forward(
        ctx: Any, group: dist.ProcessGroup, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, logsumexp, *_ = ring._templated_ring_attention(
            group, _SEQUENCE, kernel, query=query, key=key, value=value, is_causal=True
        )
        out = out.to(query.dtype)
        ctx.group = group
        ctx.save_for_backward(query, key, value, out, logsumexp)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, out, logsumexp = ctx.saved_tensors
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        made = ring._templated_ring_attention_backward(
            ctx.group,
            _SEQUENCE,
            kernel.default,
            grad_out=gradients[0].contiguous(),
            grad_out_name="grad_out",
            query=query,
            key=key,
            value=value,
            out=out,
            logsumexp=logsumexp,
            is_causal=True,
            dropout_p=0.0,
        )
        return None, *(tensor.to(query.dtype) for tensor in made[:3])
