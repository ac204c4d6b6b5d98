"""The trace: runs a job's step through PyTorch's own parallel code, and records every call that torch makes.

    recordings = trace(job)                       one rank of each pipeline stage, on the fake process group
    recordings = trace(job, "all", real=True)     every rank, as processes that talk over Gloo

On the fake group no memory is needed and any world size will do: weights have shapes and no content. Nothing that is
recorded is computed here; the calls are torch's.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Literal

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from meshcost.errors import JobError
from meshcost.execute.record import Recorder, record
from meshcost.execute.recording import Recording
from meshcost.execute.torch_models import CausalModel, build
from meshcost.execute.trace_context import attend_around
from meshcost.execute.trace_data import (
    checkpoint_blocks,
    replicate,
    shard,
    shards,
    stored_dtype,
)
from meshcost.execute.trace_expert import spread_experts
from meshcost.execute.trace_options import TraceOptions
from meshcost.execute.trace_pipeline import Pipeline, torch_schedule
from meshcost.execute.trace_step import accumulate, finish, make_optimizer
from meshcost.execute.trace_tensor import refuse_unplanned, split
from meshcost.execute.trace_world import Axes, FakeMessages, device_axes, fake_world, quietly
from meshcost.job import Job

Ranks = Literal["one per stage", "all"] | Sequence[int]


def trace(
    job: Job,
    ranks: Ranks = "one per stage",
    *,
    steps: int = 2,
    real: bool = False,
    options: TraceOptions | None = None,
    timeout_seconds: float = 600,
) -> dict[int, Recording]:
    """Run ``steps`` steps of a job in PyTorch and return what each rank called.

    The fake group plays the chosen ranks one after the other. ``real`` starts a process for every rank of the world, which
    talk over Gloo, and returns the chosen ranks. Groups are named by the axes of the job's mesh. Raises JobError for what
    PyTorch cannot do, ModelError for a family without a PyTorch model here, ExecutionError where a rank fails.
    """
    options = options if options is not None else TraceOptions()
    check(job)
    chosen = ranks_of(job, ranks)
    if real:
        from meshcost.execute.trace_real import trace_real

        recorded = trace_real(job, steps, options, timeout_seconds)
        return {rank: recorded[rank] for rank in chosen}
    with quietly():
        return {rank: _trace_fake(job, rank, steps, options) for rank in chosen}


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
    data = job.parallel.data
    problems = []
    if data.strategy == "zero2":
        problems.append("parallel.data.strategy: torch has no zero2. Choose ddp, zero1 or fsdp.")
    if job.parallel.context.method == "ulysses" and job.parallel.context.size > 1:
        problems.append("parallel.context.method: torch has no ulysses. Choose ring or all_gather.")
    extra = [axis for axis in job.parallel.strategies if axis not in ("data", "tensor", "pipeline", "context", "expert")]
    if extra:
        problems.append(f"parallel.{extra[0]}: torch knows nothing of it.")
    if job.parallel.pipeline.size > 1:
        problems += torch_schedule(job.parallel.pipeline.schedule)[1]
    if problems:
        raise JobError(problems)
    if job.parallel.tensor.size > 1:
        refuse_unplanned(job.setting.model)


def _trace_fake(job: Job, rank: int, steps: int, options: TraceOptions) -> Recording:
    with fake_world(rank, job.world_size), ExitStack() as stack:
        axes = device_axes(job.mesh, _kept(job))
        with torch.device("meta"):
            parts = build_parts(job, rank, options)
        # On meta: a fake tensor for each of thousands of shards would take minutes.
        distribute(parts, job, options, axes)
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        with fake:
            for part in parts:
                part.to_empty(device="cpu")
        if not _reads_messages(job, options, axes):
            stack.enter_context(fake)
        # Otherwise the numbers that ranks tell each other have to be real; weights, and what is computed with them, are
        # fake all the same.
        messages = stack.enter_context(FakeMessages(static_shapes=options.static_shapes))
        recorder = stack.enter_context(record(job.mesh))
        run(parts, job, steps, options, axes, messages)
        return finished(recorder, job)


def _reads_messages(job: Job, options: TraceOptions, axes: Axes) -> bool:
    """Whether torch looks at what ranks tell each other: buckets of DistributedDataParallel, shapes of stages."""
    replicates = not shards(job) and axes.sub("data", "context", "replicate") is not None
    return replicates or (job.parallel.pipeline.size > 1 and not options.static_shapes)


def _kept(job: Job) -> tuple[str, ...]:
    return ("data",) if shards(job) else ()


def finished(recorder: Recorder, job: Job) -> Recording:
    """Add to a recording what was recorded."""
    recording = recorder.recording
    return replace(recording, about={**recording.about, "model": job.setting.model.name})


def build_parts(job: Job, rank: int, options: TraceOptions) -> list[CausalModel]:
    """Build the model chunks of one rank, on the current default device."""
    model, schedule = job.setting.model, job.program.schedule
    sizes = job.parallel.pipeline.layers(model.layers)
    parts = []
    for stage in schedule.hosted(job.mesh.stage(rank)):
        start = sum(sizes[:stage])
        with default_dtype(stored_dtype(job, options)):
            parts.append(
                build(
                    model,
                    layers=range(start, start + sizes[stage]),
                    first=stage == 0,
                    last=stage == schedule.virtual_stages - 1,
                )
            )
    return parts


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make new weights in a data type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def distribute(parts: Sequence[CausalModel], job: Job, options: TraceOptions, axes: Axes) -> None:
    """Apply what changes the weights, in torch's order: tensor, experts, context, checkpointing, fully_shard."""
    for part in parts:
        tensor = axes.sub("tensor")
        if tensor is not None:
            split(part, job, options, tensor)
        spread_experts(part, options, axes)
        attend_around(part, job, options, axes)
        if job.recompute == "full":
            checkpoint_blocks(part)
        if shards(job):
            shard(part, job, options, axes)


def run(
    parts: Sequence[CausalModel],
    job: Job,
    steps: int,
    options: TraceOptions,
    axes: Axes,
    messages: FakeMessages | None = None,
) -> None:
    """Wrap in DistributedDataParallel where the job wants it, and run some steps; ``messages`` is None on a real group."""
    modules: list[nn.Module] = list(parts)
    if not shards(job):
        modules = [replicate(module, options, axes, fake=messages is not None) for module in modules]
    optimizer = make_optimizer(modules, job, options, axes)
    is_split = job.parallel.pipeline.size > 1
    pipeline = Pipeline(modules, job, options, axes, messages) if is_split else None
    for _ in range(steps):
        loss = pipeline.step() if pipeline is not None else accumulate(modules[0], job, options)
        finish(modules, optimizer, loss, job, options, axes)
