"""The trace: runs a job's step through PyTorch's own parallel code, and records every call that torch makes.

    recordings = trace(job)                       one rank of each pipeline stage, on the fake process group
    recordings = trace(job, "all", real=True)     every rank, as processes that talk over Gloo

On the fake group no memory is needed and any world size will do: weights have shapes and no content. Nothing that is
recorded is computed here; the calls are torch's.
"""

from collections.abc import Sequence
from typing import Literal

from meshcost.errors import JobError
from meshcost.execute.recording import Recording
from meshcost.execute.trace_rank import trace_fake
from meshcost.execute.trace_real import trace_real
from meshcost.execute.trace_tensor import refuse_unplanned
from meshcost.execute.trace_world import quietly
from meshcost.job import Job
from meshcost.strategies.torch_rules import torch_problems

Ranks = Literal["one per stage", "all"] | Sequence[int]


def trace(
    job: Job,
    ranks: Ranks = "one per stage",
    *,
    steps: int = 2,
    real: bool = False,
    timeout_seconds: float = 600,
) -> dict[int, Recording]:
    """Run ``steps`` steps of a job in PyTorch and return what each rank called.

    The fake group plays the chosen ranks one after the other. ``real`` starts a process for every rank of the world, which
    talk over Gloo, and returns the chosen ranks. Groups are named by the axes of the job's mesh. Raises JobError for what
    PyTorch cannot do, ModelError for a family without a PyTorch model here, ExecutionError where a rank fails.
    """
    options = job.torch
    check(job)
    chosen = ranks_of(job, ranks)
    if real:
        recorded = trace_real(job, steps, options, timeout_seconds)
        return {rank: recorded[rank] for rank in chosen}
    with quietly():
        return {rank: trace_fake(job, rank, steps, options) for rank in chosen}


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


def check(job: Job) -> None:
    """Raise JobError if PyTorch has nothing that does what the job asks."""
    problems = list(torch_problems(job.setting))
    if job.torch.flat_expert_mesh:
        problems.append("torch.flat_expert_mesh: trace makes no such mesh. Leave it out.")
    if problems:
        raise JobError(problems)
    if job.parallel.tensor.size > 1:
        refuse_unplanned(job.setting.model)
