"""Tensor parallelism as PyTorch does it: plans of DTensor placements for parallelize_module."""

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from meshcost.execute.torch_models import CausalModel
from meshcost.job import Job
from meshcost.models import Model
from meshcost.strategies.torch_options import TorchOptions

_ACTIVATION = 1  # the dim of an activation along which sequence parallelism splits


def split(part: CausalModel, job: Job, options: TorchOptions, mesh: DeviceMesh) -> None:
    """Split the weights of a part over the tensor axis."""
    model = job.setting.model
    for layer, block in part.layers.items():
        parallelize_module(block, mesh, _block_plan(job, options, model, int(layer)))
    parallelize_module(part, mesh, _outer_plan(part, job))


def _block_plan(job: Job, options: TorchOptions, model: Model, layer: int) -> dict[str, ParallelStyle]:
    sequence = job.parallel.tensor.sequence_parallel
    outside = Shard(_ACTIVATION) if sequence else Replicate()
    plan: dict[str, ParallelStyle] = {}
    for weight in model.kinds[model.pattern[layer]].weights:
        name = weight.name.partition("{layer}.")[2].rpartition(".")[0]
        if weight.shard is None and weight.group == "norm" and sequence:
            plan[name] = SequenceParallel()
        elif weight.shard == 0:
            plan[name] = ColwiseParallel()
        elif weight.shard == 1:
            plan[name] = RowwiseParallel(output_layouts=outside)
    if sequence or options.prepare_module_input:
        for name in ("self_attn", "mlp"):
            plan[name] = PrepareModuleInput(input_layouts=(outside,), desired_input_layouts=(Replicate(),))
    return plan


def _outer_plan(part: nn.Module, job: Job) -> dict[str, ParallelStyle]:
    """Embedding, last norm and head. Sequence parallelism splits the embedding's output, so it needs its rows split."""
    tensor = job.parallel.tensor
    outside = Shard(_ACTIVATION) if tensor.sequence_parallel else Replicate()
    here = {name for name, _ in part.named_modules()}
    plan: dict[str, ParallelStyle] = {}
    if tensor.vocabulary_parallel or tensor.sequence_parallel:
        plan["model.embed_tokens"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=outside)
        plan["lm_head"] = ColwiseParallel(
            input_layouts=outside,
            output_layouts=Shard(-1) if splits_loss(job) else Replicate(),
            use_local_output=not splits_loss(job),
        )
    if tensor.sequence_parallel:
        plan["model.norm"] = SequenceParallel()
    return {name: style for name, style in plan.items() if name in here}


def splits_loss(job: Job) -> bool:
    """Whether the loss is computed on logits that are split over the vocabulary."""
    tensor = job.parallel.tensor
    return (
        tensor.size > 1 and tensor.loss_parallel and (tensor.vocabulary_parallel or tensor.sequence_parallel)
    )
