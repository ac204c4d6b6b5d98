"""What trace has no code for, said before torch is loaded and before anything is built, and which ranks it plays."""

from collections.abc import Iterator, Sequence
from typing import Literal

from meshcost.execute.trace_families import BUILT_FAMILIES, SPLIT_FAMILIES
from meshcost.job import Job
from meshcost.strategies.data.options import syncs_every
from meshcost.strategies.torch_rules import torch_problems
from meshcost.symbols import s_max

Ranks = Literal["one per stage", "all"] | Sequence[int]

#: No trace starts more processes than this.
MOST_PROCESSES = 64

#: Options of torch that a prediction knows and a trace does not.
_UNKNOWN = {
    "flat_expert_mesh": "trace makes no such mesh. Leave it out.",
    "comm_hook": "trace registers no hook of yours. Leave it out, or record your own code (meshcost record).",
    "buffer_bytes": "the models of trace have no buffers. Leave it out, or record your own code (meshcost record).",
}

#: Data types of weights that a trace computes with.
_COMPUTED = ("fp64", "fp32", "tf32", "bf16", "fp16")


def trace_problems(job: Job, *, real: bool = False) -> Iterator[str]:
    """Say what of a job cannot be traced: where, why, and what could be."""
    yield from torch_problems(job.setting)
    for name, why in _UNKNOWN.items():
        if getattr(job.torch, name) != type(job.torch).model_fields[name].default:
            yield f"torch.{name}: {why}"
    if (dtype := job.precision.dtype("weights")) not in _COMPUTED:
        yield f"precision.weights: torch cannot compute with {dtype} on a CPU. Choose {', '.join(_COMPUTED)}."
    if job.torch.parameters_as_bucket_view and not real:
        yield "torch.parameters_as_bucket_view: torch gives weights other numbers, which the fake group lacks. Add --real."
    if job.torch.static_graph and job.micro_batches > 1 and not syncs_every(job.setting):
        yield (
            "torch.static_graph: PyTorch 2.13 stops with an internal error where the first micro-batch is not reduced. "
            "Leave it out, or choose a batch.global_batch of one micro-batch on each rank."
        )
    model = job.setting.model
    if model.family not in BUILT_FAMILIES:
        yield (
            f"model: trace has no PyTorch model of the family {model.family}. Choose one of {', '.join(BUILT_FAMILIES)}; "
            "or record your own code (meshcost record)."
        )
    elif job.parallel.tensor.size > 1:
        yield from _unplanned(job)
    yield from _expert_problems(job)
    positions, length = model.dims.get(s_max), job.batch.sequence
    if positions is not None and length > positions:
        yield f"batch.sequence: {length:,} tokens have no position beyond {positions:,} in {model.name}. Choose less."
    if real and job.world_size > MOST_PROCESSES:
        yield (
            f"parallel: {job.world_size:,} real ranks are more than {MOST_PROCESSES}, the most that are started. Choose a "
            "smaller layout, or leave --real out."
        )


def _unplanned(job: Job) -> Iterator[str]:
    size, model = f"parallel.tensor.size: {job.parallel.tensor.size}", job.setting.model
    if model.family not in SPLIT_FAMILIES:
        yield f"{size} would split {model.family}, for which trace has no tensor plan. Choose 1."
        return
    for kind in model.kinds:
        if kind.has_experts:
            yield (
                f"{size} would split experts, for whose weights trace has no tensor plan. Choose 1; "
                "parallel.expert.size deals experts out."
            )
            return
        for weight in kind.weights:
            if weight.split_input or weight.whole or weight.transposed or weight.latent:
                name = weight.name.partition("{layer}.")[2]
                yield f"{size} would split {name}, for which trace has no tensor plan. Choose 1."
                return


def _expert_problems(job: Job) -> Iterator[str]:
    if job.mesh.expert is None:
        return
    expert = job.parallel.expert
    if job.parallel.data.strategy == "zero1" and job.torch.optimizer is not None:
        yield (
            "parallel.data.strategy: zero1 broadcasts each weight from its owner, which torch cannot do with experts that "
            "are dealt out. Choose ddp or fsdp."
        )
    if job.mesh.stages > 1 and tuple(job.mesh.axes)[-1] != "pipeline":
        yield "parallel.order: trace deals experts out inside a stage. Write pipeline last."
    if expert.routing:
        name = "imbalance" if expert.capacity_factor is None else "capacity_factor"
        yield f"parallel.expert.{name}: every expert of a trace gets equally many tokens. Leave it out."


def ranks_of(job: Job, ranks: Ranks) -> tuple[int, ...]:
    """Choose ranks: the first of each stage, all, or those that are listed."""
    mesh = job.mesh
    if ranks == "all":
        return tuple(range(mesh.world_size))
    if isinstance(ranks, str):
        stride = mesh.group(0, ("pipeline",)) if mesh.stages > 1 else (0,)
        return tuple(stride)
    for rank in ranks:
        mesh.check(rank)
    return tuple(ranks)
