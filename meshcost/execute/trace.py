"""The trace: runs a job's step through PyTorch's own parallel code, and records every call that torch makes.

    recordings = trace(job)                       one rank of each pipeline stage, on the fake process group
    recordings = trace(job, "all", real=True)     every rank, as processes that talk over Gloo

On the fake group no memory is needed and any world size will do: weights have shapes and no content. Nothing that is
recorded is computed here; the calls are torch's.
"""

from meshcost.errors import JobError
from meshcost.execute.recording import Recording
from meshcost.execute.trace_rank import trace_fake
from meshcost.execute.trace_real import trace_real
from meshcost.execute.trace_rules import Ranks, ranks_of, trace_problems
from meshcost.execute.trace_world import quietly
from meshcost.job import Job


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
    PyTorch cannot do or trace has no model for, ExecutionError where a rank fails.
    """
    options = job.torch
    if problems := tuple(trace_problems(job, real=real)):
        raise JobError(problems)
    chosen = ranks_of(job, ranks)
    if real:
        recorded = trace_real(job, steps, options, timeout_seconds)
        return {rank: recorded[rank] for rank in chosen}
    with quietly():
        return {rank: trace_fake(job, rank, steps, options) for rank in chosen}
